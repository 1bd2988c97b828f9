"""Compares the example worker in Python with signatures.json.

Usage: python3 vectors.py FOLDER_OF_THE_WORKER SIGNATURES
"""

import json
import sys
from datetime import datetime

sys.path.insert(0, sys.argv[1])
import worker  # noqa: E402

with open(sys.argv[2], encoding="utf-8") as file:
    vectors = json.load(file)
keys = {name: secret.encode() for name, secret in vectors["secrets"].items()}
for vector in vectors["envelopes"]:
    now = datetime.fromisoformat(vector["now"].replace("Z", "+00:00"))
    try:
        worker.open_envelope(vector["body"].encode(), keys, now)
        result = "valid"
    except worker.Forged as e:
        result = "expired" if "expired" in str(e) else "forged"
    except worker.Invalid:
        result = "invalid"
    if result != vector["result"]:
        sys.exit(f"{vector['name']}: the result is {result}, not {vector['result']}")
