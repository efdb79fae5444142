"""The normal form in which texts are compared: by metrics, and by the search for equal prompts.

Texts are in Unicode's form NFC, case-folded, with single spaces. Compatibility forms differ, because NFKC
makes "x²" equal to "x2". Numbers keep sign and decimal point, and lose separators of thousands.
"""

from __future__ import annotations

import re
import string
import unicodedata
from fractions import Fraction

_INVISIBLE = dict.fromkeys(map(ord, "\u00ad\u200b\u200e\u200f\u2060\ufeff"))
"""Soft hyphen, spaces without width, direction marks and byte order mark."""
_MINUS = "-\u2010\u2011\u2012\u2013\u2212\ufe63\uff0d"
_MINUSES = dict.fromkeys(map(ord, _MINUS), "-")
_WIDE = {0xFF01 + offset: 0x21 + offset for offset in range(0x5E)}
_CURRENCY = "$¢£¤¥֏؋฿៛\u20a0-\u20cf\ufdfc"
_THIN = "\u00a0\u2009\u202f"
_SEPARATORS = f",'’_٬{_THIN}"


def _grouped(separators: str) -> str:
    """Return a pattern of digits in groups of three, or of two before the last three as in India."""
    threes = rf"\d{{1,3}}(?P<separator>[{separators}])\d{{3}}(?:(?P=separator)\d{{3}})*(?!(?P=separator)?\d)"
    return rf"(?:{threes}|\d{{1,2}}(?:,\d{{2}})+,\d{{3}}(?!,?\d))"


_THOUSANDS = re.compile(rf"(?<![\d.,]){_grouped(_SEPARATORS)}")
_SIGN = re.compile(rf"(?<![\w.])[{_MINUS}]((?:[^\W\d_]{{0,3}}[{_CURRENCY}] ?)?)(?=\.?\d)")
_DASH = re.compile(rf"(?<=\d)(?:[{_MINUS}]| [{_MINUS}] )(?=\d)")
_POINT = re.compile(r"(?<![\w.])\.(?=\d)")
_PARTS = re.compile(r"-?\d+(?:[^\w\s]\d+)*|\S")
_WITHOUT_SPACES = re.compile(
    "[\u3040-\u30ff"  # kana
    "\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # Han
    "\u0e00-\u0eff"  # Thai, Lao
    "\u1000-\u109f"  # Burmese
    "\u1780-\u17ff]"  # Khmer
)


def folded(text: str) -> str:
    """Return a text in NFC, case-folded, with single spaces, without invisible characters."""
    composed = unicodedata.normalize("NFC", text).translate(_INVISIBLE)
    return " ".join(unicodedata.normalize("NFC", composed.casefold()).split())


def without_punctuation(text: str) -> str:
    """Return a folded text without punctuation; empty if it consists of punctuation.

    Signs and decimal points of numbers are kept, and so are other characters between digits: without them,
    1/2 and 10:30 would be 12 and 1030.
    """
    plain = _with_plain_numbers(text)
    characters = (c for i, c in enumerate(plain) if not _is_punctuation(c) or _is_of_number(plain, i))
    return " ".join("".join(characters).split())


def words_of(text: str) -> list[str]:
    """Split a text into numbers and runs of letters, marks and digits; without any, at spaces.

    Words of scripts without spaces are divided into numbers and single characters.
    """
    plain = _with_plain_numbers(text)
    spaced = "".join(
        c if unicodedata.category(c)[0] in "LMN" or _is_of_number(plain, i) else " "
        for i, c in enumerate(plain)
    )
    return [part for word in spaced.split() for part in parts_of(word)] or plain.split()


def parts_of(word: str) -> list[str]:
    """Divide a word of a script without spaces into numbers and characters; another word is one part."""
    return _PARTS.findall(word) if _WITHOUT_SPACES.search(word) else [word]


def _with_plain_numbers(text: str) -> str:
    """Return a folded text whose numbers have no separators, "-" as minus, and a leading zero."""
    joined = _THOUSANDS.sub(lambda match: re.sub(r"\D", "", match[0]), unicodedata.normalize("NFC", text))
    signed = _SIGN.sub(r"\1-", folded(joined))
    return _POINT.sub("0.", _DASH.sub("-", signed))


def _is_punctuation(character: str) -> bool:
    return character in string.punctuation or unicodedata.category(character).startswith("P")


def _is_of_number(text: str, index: int) -> bool:
    """Whether the punctuation at an index is a sign, or stands between two digits."""
    before, after = text[index - 1 : index], text[index + 1 : index + 2]
    if not after.isdecimal() or text[index].isspace():
        return False
    return before.isdecimal() or (text[index] == "-" and (not before or not before.isalnum()))


_DIGITS = rf"(?:{_grouped(_SEPARATORS + ' ')}|\d+(?![ {_THIN}]\d{{3}}(?!\d)))"
_SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_START = re.compile(
    rf"(?:(?<!\w)(?P<sign>[-+]))?(?:[^\W\d_]{{0,3}}[{_CURRENCY}]|(?<!\w)[A-Z]{{3}}(?=[ \d]))?[ ]?"
    r"(?P<inner>(?<!\w)-)?(?=\d|(?<!\w)\.\d)"
)
_OPERATORS = r"[-+*/×÷^=]"
_END = rf"(?!\S*[\d⁰¹²³⁴-⁹])(?![ \t]*{_OPERATORS}[ \t]*[\d.{_CURRENCY}])"
_MIXED = re.compile(rf"(?P<whole>\d+) (?P<over>\d+)/(?P<under>\d+){_END}")
_RATIO = re.compile(rf"(?P<over>\d+)[ ]?/[ ]?(?P<under>\d+){_END}")
_DECIMAL = re.compile(
    rf"(?P<digits>(?:{_DIGITS})?(?:\.\d+)?)(?P<exponent>[eE][-+]?\d{{1,3}})?"
    rf"(?:[ ]?(?P<scale>{'|'.join(_SCALES)})\b)?{_END}"
)
_UNREAD = re.compile(rf"\S+(?:[ {_THIN}]\d{{3}}\S*|[ \t]*{_OPERATORS}[ \t]*\S+)*")
_LONGEST = 1000
"""The most digits of a number; a longer one is compared as text."""


def number_of(text: str) -> Fraction | str | None:
    """Return the value of the first number of a text; None = there is none.

    A sign may stand before or after a currency; units, percent signs among them, are not compared. A text of
    several numbers that is not a fraction, such as 12:30, 12,5, a date or a sum, is returned as text, because
    its first number alone has another value.
    """
    plain = unicodedata.normalize("NFC", text).translate(_INVISIBLE).translate(_MINUSES).translate(_WIDE)
    plain = re.sub(r"^([-+])\s+", r"\1", _with_written_fractions(plain).strip())
    start = _START.search(plain)
    if start is None:
        return None
    is_negative = start["sign"] == "-" or start["inner"] is not None
    if (value := _value(plain, start.end())) is not None:
        return -value if is_negative else value
    unread = _UNREAD.match(plain, start.end())
    return ("-" if is_negative else "") + folded(unread[0] if unread else "").rstrip(string.punctuation)


def _value(text: str, position: int) -> Fraction | None:
    for pattern in (_MIXED, _RATIO, _DECIMAL):
        match = pattern.match(text, position)
        if match is None or len(match[0]) > _LONGEST:
            continue
        parts = match.groupdict()
        if parts.get("under") is not None:
            denominator = int(parts["under"])
            integer, numerator = int(parts.get("whole") or 0), int(parts["over"])
            return Fraction(integer * denominator + numerator, denominator) if denominator else None
        digits = re.sub(r"[^\d.]", "", parts["digits"])
        scale = Fraction(10 ** _SCALES.get(parts["scale"] or "", 0))
        return Fraction(f"{digits}{parts['exponent'] or ''}") * scale
    return None


def _with_written_fractions(text: str) -> str:
    """Return a text with each character such as "½" as a space and two digits with a slash."""
    return "".join(
        f" {written.replace('⁄', '/')}" if "⁄" in (written := unicodedata.normalize("NFKC", c)) else c
        for c in text
    ).replace("⁄", "/")
