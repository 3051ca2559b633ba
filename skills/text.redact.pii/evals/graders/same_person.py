import re

ADDRESSES = ("ann@example.com", "support@example.com", "bob@example.org")


def grade(answer, files, transcript):
    """Pass if each person has one mark in all places, and only the address of the support is kept."""
    text = files["mails.txt"].read_text() if "mails.txt" in files else ""
    lines = [line for line in text.splitlines() if line.strip()]
    if len(lines) != 4 or text.count(ADDRESSES[1]) != 2:
        return {"passed": False, "evidence": "lines or the address of the support are missing"}
    ann, bob = (lines[number].partition(":")[2].strip() for number in (0, 2))
    marks = re.search(r"Ann \((.*)\) wrote to Bob \((.*)\),", lines[3])
    is_same = marks is not None and marks.groups() == (ann, bob) and ann != bob
    kept = [address for address in (ADDRESSES[0], ADDRESSES[2]) if address in text]
    return {"passed": is_same and not kept, "evidence": f"{ann} and {bob}, {len(kept)} addresses kept"}
