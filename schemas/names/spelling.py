"""The normal form of a name, the rule for new names, and whether two names can be taken for each other.

A name is normalised by NFKC, without white space at its ends and with single spaces inside. A new name has
letters, marks, numbers, spaces, `-`, `_` and `.`, in one script. Two names resemble each other if they are
equal without regard to case, or look the same by the confusable characters of Unicode Technical Standard 39.
"""

from __future__ import annotations

import hashlib
import unicodedata

from schemas.names.unicode_table import COMMON, unicode_table

MAX_LENGTH = 100
_PUNCTUATION = frozenset(" -_.")
_MARKS = ("Mn", "Mc")
_MOST_MARKS = 4
_CONTROLS = frozenset({"Cc", "Zl", "Zp"})


class NameRefused(ValueError):
    """A text cannot be a new name; the message says why, without the text."""


def normal_name(text: str) -> str:
    """Return the normal form of a name, which may be one that `new_name` refuses."""
    return " ".join(unicodedata.normalize("NFKC", text).split())


def new_name(text: str, *, also: str = "") -> str:
    """Return the normal form of a new name; `also` are further characters that it may have.

    Raises:
        NameRefused: it is empty or too long, has other characters, or mixes scripts.
    """
    for position, character in enumerate(text, 1):
        if unicodedata.category(character) in _CONTROLS:  # some count as white space, which is normalised
            raise NameRefused(f"character {position} is a control character or line separator; leave it out")
    name = normal_name(text)
    if len(name) > MAX_LENGTH:
        raise NameRefused(f"longer than {MAX_LENGTH} characters; shorten it")
    scripts, table, marks, has_letter = None, unicode_table(), 0, False
    for position, character in enumerate(name, 1):
        allowed = table.scripts_of(character)
        if allowed is None and character not in _PUNCTUATION and character not in also:
            raise NameRefused(
                f"character {position} is not allowed; use letters, digits, spaces, -, _ and .{_listed(also)}"
            )
        is_mark = unicodedata.category(character) in _MARKS
        # Stacked marks can cover the text around a name.
        marks = marks + 1 if is_mark else 0
        if is_mark and (marks > _MOST_MARKS or not has_letter):
            raise NameRefused(f"character {position} is a mark without a letter; leave it out")
        has_letter = has_letter or (allowed is not None and not is_mark)
        if allowed is None or allowed == COMMON:
            continue
        # Names of one script cannot contain look-alikes of another one.
        together = allowed if scripts is None else scripts & allowed
        if not together:
            raise NameRefused(
                f"character {position} is of another script ({_shown(allowed)}) than those before "
                f"({_shown(scripts or allowed)}); write the name in one script"
            )
        scripts = together
    if not has_letter:
        raise NameRefused("it has no letter and no digit; choose a name with one")
    return name


def is_resembling(name: str, existing: str) -> bool:
    """Whether two names can be taken for each other; equal names resemble each other too."""
    return not name_keys(name).isdisjoint(name_keys(existing))


def resemblance(name: str, existing: str) -> str:
    """Describe how a name resembles an existing one, as the beginning of a phrase that ends with that one."""
    if normal_name(name) == normal_name(existing):
        return "is the same as"
    if _folded(normal_name(name)) == _folded(normal_name(existing)):
        return "differs only in upper and lower case from"
    return "looks like"


def name_keys(text: str) -> frozenset[str]:
    """Return the keys of a name: names that resemble each other have one in common. 64 hex digits each.

    Look-alikes are found as written, in lower case and in upper case. Letters of other scripts are also
    compared with Latin ones of any case.
    """
    name = normal_name(text)
    lower, written = _folded(name), _skeleton(name)
    # A Cyrillic name may look like a Latin one in capitals only, so that each case has a key.
    keys = {f"lower {_skeleton(lower)}", f"upper {_skeleton(name.upper())}", f"written {written}"}
    if not _is_latin(name):
        keys.add(f"lower {_folded(written)}")
    return frozenset(hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest() for key in keys)


def _folded(name: str) -> str:
    return unicodedata.normalize("NFKC", name.casefold())


def _skeleton(text: str) -> str:
    """Return what a text looks like (UTS 39, section 4); equal skeletons look the same."""
    look = unicodedata.normalize("NFD", text).translate(unicode_table().prototypes)
    return unicodedata.normalize("NFD", look)


def _is_latin(name: str) -> bool:
    scripts = [unicode_table().scripts_of(character) for character in name]
    return all(allowed is None or allowed == COMMON or "Latin" in allowed for allowed in scripts)


def _shown(scripts: frozenset[str]) -> str:
    return ", ".join(sorted(scripts))


def _listed(also: str) -> str:
    return f", also {' '.join(also)}" if also else ""
