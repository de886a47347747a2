"""`kvwatch plan`: whether servers will fit their cards, before they start; pure."""
