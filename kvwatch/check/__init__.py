"""`kvwatch check`: whether the servers that files describe fit their cards, before they start."""
