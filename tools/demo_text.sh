#!/usr/bin/env bash
# demo_text.sh OUT.txt: the King James Bible as prose, from Debian's package bible-kjv: one verse a
# line without its reference, an empty line between chapters, "  " after a full stop made " ".
# The same bytes on every machine; OUT.txt is complete or absent.
set -eu -o pipefail
out=${1:?usage: demo_text.sh OUT.txt}
command -v bible >/dev/null || { echo "demo_text.sh: 'bible' not found: install bible-kjv" >&2; exit 1; }
part=$(mktemp "$out.XXXXXX")
trap 'rm -f "$part"' EXIT
LC_ALL=C bible -f gen1:1-rev22:21 | LC_ALL=C awk '
  match($0, /^[1-3]?[A-Za-z]+[0-9]+:[0-9]+ /) {
    split(substr($0, 1, RLENGTH), reference, ":")
    if (NR > 1 && reference[1] != chapter) print ""
    chapter = reference[1]
    verse = substr($0, RLENGTH + 1)
    gsub(/  +/, " ", verse); sub(/ +$/, "", verse)
    print verse
    next
  }
  { print "demo_text.sh: not a verse: " $0 > "/dev/stderr"; exit 1 }
  END { if (NR != 31102) { print "demo_text.sh: " NR " verses, expected 31102" > "/dev/stderr"; exit 1 } }
' >"$part"
chmod 644 "$part"
mv "$part" "$out"
trap - EXIT
