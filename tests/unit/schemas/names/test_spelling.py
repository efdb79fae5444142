"""Spelling of names: equality, resemblance, and refused characters."""

from __future__ import annotations

import pytest

from schemas.names.spelling import NameRefused, is_resembling, name_keys, new_name, normal_name, resemblance

NORMAL = {
    "aster": "aster",
    " aster ": "aster",
    "Aster  Clinic": "Aster Clinic",
    "Aster\u00a0\u3000Clinic": "Aster Clinic",
    "ａｓｔｅｒ": "aster",
    "a\u0301": "á",
    "ﬁr №1": "fir No1",
    "hospital-a_2.b": "hospital-a_2.b",
    "Clinique Sainte-Thérèse": "Clinique Sainte-Thérèse",
    "Việt Nam": "Việt Nam",
    "北京协和医院": "北京协和医院",
    "東京カメラ 3": "東京カメラ 3",
    "한국 은행": "한국 은행",
    "بيمارستان": "بيمارستان",
    "हिन्दी संस्थान": "हिन्दी संस्थान",
    "Больница 1": "Больница 1",
}


@pytest.mark.parametrize(("text", "normal"), NORMAL.items(), ids=ascii)
def test_new_names_are_stored_in_their_normal_form(text: str, normal: str) -> None:
    assert new_name(text) == normal
    assert new_name(normal) == normal


REFUSED = {
    "": "no letter and no digit",
    " \u3000": "no letter and no digit",
    ".": "no letter and no digit",
    "..": "no letter and no digit",
    ". . .": "no letter and no digit",
    "--": "no letter and no digit",
    "../x": "character 3 is not allowed",
    "a/b": "character 2 is not allowed",
    "a\\b": "character 2 is not allowed",
    "O'Brien": "character 2 is not allowed",
    "a@b": "character 2 is not allowed",
    "a\x9b31mb": "character 2 is a control character",
    "a\x85b": "character 2 is a control character",
    "a\tb": "character 2 is a control character",
    "ab\n": "character 3 is a control character",
    "a\u2028b": "character 2 is a control character or line separator",
    "a\u2029b": "character 2 is a control character or line separator",
    "a\u200bb": "character 2 is not allowed",
    "a\u2066b": "character 2 is not allowed",
    "a\ue000b": "character 2 is not allowed",
    "a\ufe0fb": "character 2 is not allowed",
    "a\u202eb": "character 2 is not allowed",
    "a\u3164b": "character 2 is not allowed",
    "a🏥": "character 2 is not allowed",
    "a\U000e0041b": "character 2 is not allowed",
    "a" * 101: "longer than 100",
    "ﷺ" * 10: "longer than 100",
    "\u0301a": "character 1 is a mark without a letter",
    "x" + "\u0301" * 5: "is a mark without a letter",
    "аster": "character 2 is of another script (Latin) than those before (Cyrillic)",
    "asteг": "character 5 is of another script (Cyrillic) than those before (Latin)",
    "Ωmega": "another script",
    "silo ٣": "another script",
    "한カ": "another script",
}


@pytest.mark.parametrize(("text", "reason"), REFUSED.items(), ids=ascii)
def test_invalid_names_are_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(NameRefused) as refusal:
        new_name(text)
    assert reason in str(refusal.value)


def test_names_of_persons_may_be_mail_addresses() -> None:
    assert new_name("dpo@hospital-a", also="@") == "dpo@hospital-a"


SAME = "is the same as"
CASE = "differs only in upper and lower case from"
LOOKS = "looks like"
RESEMBLING = [
    ("aster", "aster ", SAME),
    ("aster", "ａｓｔｅｒ", SAME),
    ("aster", "ASTER", CASE),
    ("straße", "STRASSE", CASE),
    ("Σας", "ΣΑΣ", CASE),
    ("scope", "ѕсоре", LOOKS),  # Cyrillic
    ("SCOPE", "ѕсоре", LOOKS),
    ("paypal", "раураӏ", LOOKS),  # with a small palochka
    ("paypal", "раураӀ", LOOKS),  # with a capital one
    ("hbo", "НВО", LOOKS),  # Cyrillic, in capitals only
    ("BR", "Вг", LOOKS),  # Cyrillic, in this case only
    ("Al", "ΑΙ", LOOKS),  # Greek
    ("tai", "ΤΑΙ", LOOKS),  # Greek
    ("aster", "ꓮꓢꓔꓰꓣ", LOOKS),  # Lisu
    ("hbo", "нво", LOOKS),  # they are equal in capitals
    ("оо", "οο", LOOKS),  # Cyrillic and Greek
    ("silo-1", "silo-l", LOOKS),
    ("silo-10", "silo-lO", LOOKS),
]


@pytest.mark.parametrize(("name", "similar", "how"), RESEMBLING, ids=ascii)
def test_similar_names_resemble_each_other(name: str, similar: str, how: str) -> None:
    assert is_resembling(name, similar)
    assert is_resembling(similar, name)
    assert resemblance(name, similar) == how


DIFFERENT = [
    ("aster", "asters"),
    ("silo 1", "silo 10"),
    ("silo 1", "silo-1"),
    ("Oil", "Oll"),
    ("tail", "tall"),
    ("aster", "astér"),
    ("Köln", "Koeln"),
    ("вода", "voda"),
    ("北京", "東京"),
]


@pytest.mark.parametrize(("name", "different"), DIFFERENT, ids=ascii)
def test_different_names_do_not_resemble_each_other(name: str, different: str) -> None:
    assert not is_resembling(name, different)


def test_keys_of_stored_names_never_fail() -> None:
    for stored in ("..", "a\x9b31m", "a\ud800", "\u202e", "O'Brien & Co."):
        assert name_keys(stored) == name_keys(normal_name(stored))
        assert all(len(key) == 64 for key in name_keys(stored))
