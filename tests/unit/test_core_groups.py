# ruff: noqa: E501 - a step is one line of a transcript
"""Groups of rows that share their leading pages, as transcripts."""

from support.core_transcript import check_transcript


def test_rows_that_share_four_pages_are_a_group_while_they_are_four() -> None:
    check_transcript("""
    core tokens=128
    worker w pages=40 size=4
    submit a 1..17 max=30
    steps 1
    submit b 1..17,90 max=2
    submit c 1..17,91 max=30
    submit d 1..17,92 max=30
    submit e 50..53 max=30
    steps 4
    ----
    a admitted on w, 0 cached
    step 1: a on row 0 pages 0,1,2,3,4 computes 17
    step 1: a0
    a prefilled 17 of 17
    b admitted on w, 16 cached
    c admitted on w, 16 cached
    d admitted on w, 16 cached
    e admitted on w, 0 cached
    step 2: b on row 1 pages 0,1,2,3,5 computes 2; c on row 2 pages 0,1,2,3,6 computes 2; d on row 3 pages 0,1,2,3,7 computes 2; e on row 4 page 8 computes 4; a decodes; published 0,1,2,3
    step 2: b0 c0 d0 e0 a1
    b prefilled 18 of 18
    c prefilled 18 of 18
    d prefilled 18 of 18
    e prefilled 4 of 4
    step 3: e page 9; a,b,c,d,e decode; group 0 a,b,c,d share 4 pages; published 8
    step 3: a2 b1 c1 d1 e1
    b ended: length, 2 tokens, in decode
    step 4: row 1 released; a,c,d,e decode; group 0 is gone
    step 4: a3 c2 d2 e2
    step 5: a page 5; c page 10; d page 11; a,c,d,e decode; published 4,6,7
    step 5: a4 c3 d3 e3

    cancel c
    plan
    ----
    c ended: cancelled, 4 tokens, in decode
    step 6: row 2 released; a,d,e decode
    """)


def test_a_group_is_as_deep_as_all_its_members_agree() -> None:
    """d shares five pages of six, so the group has five."""
    check_transcript("""
    core tokens=256
    worker w pages=60 size=4
    submit a 1..25 max=30
    steps 1
    submit b 1..25,90 max=30
    submit c 1..25,91 max=30
    submit d 1..20,80..85 max=30
    steps 2
    submit e 1..25,92 max=30
    steps 2
    ----
    a admitted on w, 0 cached
    step 1: a on row 0 pages 0,1,2,3,4,5,6 computes 25
    step 1: a0
    a prefilled 25 of 25
    b admitted on w, 24 cached
    c admitted on w, 24 cached
    d admitted on w, 20 cached
    step 2: b on row 1 pages 0,1,2,3,4,5,7 computes 2; c on row 2 pages 0,1,2,3,4,5,8 computes 2; d on row 3 pages 0,1,2,3,4,9,10 computes 6; a decodes; published 0,1,2,3,4,5
    step 2: b0 c0 d0 a1
    b prefilled 26 of 26
    c prefilled 26 of 26
    d prefilled 26 of 26
    step 3: a,b,c,d decode; group 0 a,b,c,d share 5 pages; published 9
    step 3: a2 b1 c1 d1
    e admitted on w, 24 cached
    step 4: e on row 4 pages 0,1,2,3,4,5,11 computes 2; a,b,c,d decode
    step 4: e0 a3 b2 c2 d2
    e prefilled 26 of 26
    step 5: a page 12; b page 13; c page 14; d page 15; a,b,c,d,e decode; group 0 a,b,c,d,e share 5 pages; published 6,7,8,10
    step 5: a4 b3 c3 d3 e1
    """)


def test_one_that_shares_little_does_not_spoil_a_deep_group() -> None:
    """e shares four pages of twelve: it stays alone."""
    check_transcript("""
    core tokens=512
    worker w pages=90 size=4
    submit a 1..49 max=30
    steps 1
    submit b 1..49,90 max=30
    submit c 1..49,91 max=30
    submit d 1..49,92 max=30
    submit e 1..16,70..99 max=30
    steps 3
    ----
    a admitted on w, 0 cached
    step 1: a on row 0 pages 0,1,2,3,4,5,6,7,8,9,10,11,12 computes 49
    step 1: a0
    a prefilled 49 of 49
    b admitted on w, 48 cached
    c admitted on w, 48 cached
    d admitted on w, 48 cached
    e admitted on w, 16 cached
    step 2: b on row 1 pages 0,1,2,3,4,5,6,7,8,9,10,11,13 computes 2; c on row 2 pages 0,1,2,3,4,5,6,7,8,9,10,11,14 computes 2; d on row 3 pages 0,1,2,3,4,5,6,7,8,9,10,11,15 computes 2; e on row 4 pages 0,1,2,3,16,17,18,19,20,21,22,23 computes 30; a decodes; published 0,1,2,3,4,5,6,7,8,9,10,11
    step 2: b0 c0 d0 e0 a1
    b prefilled 50 of 50
    c prefilled 50 of 50
    d prefilled 50 of 50
    e prefilled 46 of 46
    step 3: a,b,c,d,e decode; group 0 a,b,c,d share 12 pages; published 16,17,18,19,20,21,22
    step 3: a2 b1 c1 d1 e1
    step 4: a,b,c,d,e decode
    step 4: a3 b2 c2 d2 e2
    """)


def test_outputs_of_one_request_are_a_group() -> None:
    check_transcript("""
    core tokens=128
    worker w pages=40 size=4
    submit a 1..18 max=9 uncached
    submit b 1..18 max=9 uncached fork=a
    submit c 1..18 max=9 uncached fork=a
    submit d 1..18 max=9 uncached fork=a
    steps 3
    ----
    a admitted on w, 0 cached
    step 1: a on row 0 pages 0,1,2,3,4 computes 18
    step 1: a0
    a prefilled 18 of 18
    b admitted on w, 17 cached
    c admitted on w, 17 cached
    d admitted on w, 17 cached
    step 2: b on row 1 pages 0,1,2,3,5 computes 1; c on row 2 pages 0,1,2,3,6 computes 1; d on row 3 pages 0,1,2,3,7 computes 1; a decodes; page 4 copied to 5; page 4 copied to 6; page 4 copied to 7
    step 2: b0 c0 d0 a1
    b prefilled 18 of 18
    c prefilled 18 of 18
    d prefilled 18 of 18
    step 3: a,b,c,d decode; group 0 a,b,c,d share 4 pages
    step 3: a2 b1 c1 d1
    """)
