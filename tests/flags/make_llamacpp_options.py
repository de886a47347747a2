"""Write the names that a real llama-server knows, read from what its `--help` prints.

python tests/flags/make_llamacpp_options.py /path/to/llama-server b11434 > tests/flags/llamacpp-b11434.json
"""

from __future__ import annotations

import json
import re
import subprocess
import sys

DESCRIPTION_COLUMN = 40


def options(help_text: str) -> list[dict[str, object]]:
    """List the options: all spellings, how many values they take, their variable, the default in words."""
    found: list[dict[str, object]] = []
    description = ""
    for line in [*help_text.splitlines(), "-"]:
        if line.startswith("-") and not line.startswith("-----"):
            if found:
                default = re.search(r"\(default: ([^,)]*)", description)
                variable = re.search(r"\(env: (\w+)\)", description)
                found[-1]["default"] = default[1].strip("'") if default else None
                found[-1]["env"] = variable[1] if variable else None
            wide = line[DESCRIPTION_COLUMN - 2 : DESCRIPTION_COLUMN].strip()
            words = (line if wide else line[:DESCRIPTION_COLUMN]).split()
            description = "" if wide else line[DESCRIPTION_COLUMN:]
            names = []
            while words and words[0].startswith("-"):
                word = words.pop(0)
                names.append(word.rstrip(","))
                if not word.endswith(","):
                    break
            pair = len(words) == 2 and all(word.isupper() for word in words)
            found.append({"names": names, "values": 2 if pair else int(bool(words))})
        else:
            description += " " + line.strip()
    return found[:-1]


def main() -> None:
    """Print the table, one option a line."""
    program, version = sys.argv[1:]
    text = subprocess.run([program, "--help"], check=True, capture_output=True, text=True).stdout
    rows = ",\n".join(json.dumps(option) for option in options(text))
    sys.stdout.write(f'{{"version": "{version}", "options": [\n{rows}\n]}}\n')


if __name__ == "__main__":
    main()
