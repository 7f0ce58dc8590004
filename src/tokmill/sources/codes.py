"""Two letters of a language as three: ISO 639-1 as ISO 639-3, and what a collection of web text calls its main form."""

from __future__ import annotations

LONG_CODES = dict(
    pair.split(":")
    for pair in (
        "af:afr am:amh ar:ara/arb as:asm az:aze/azj ba:bak be:bel bg:bul bn:ben bo:bod br:bre bs:bos "
        "ca:cat co:cos cs:ces cv:chv cy:cym da:dan de:deu dv:div el:ell en:eng eo:epo es:spa et:est/ekk "
        "eu:eus fa:fas/pes fi:fin fo:fao fr:fra fy:fry ga:gle gd:gla gl:glg gn:grn/gug gu:guj gv:glv "
        "ha:hau he:heb hi:hin hr:hrv ht:hat hu:hun hy:hye ia:ina id:ind ig:ibo is:isl it:ita ja:jpn "
        "jv:jav ka:kat kk:kaz km:khm kn:kan ko:kor ku:kur/kmr kv:kpv kw:cor ky:kir la:lat lb:ltz li:lim "
        "lo:lao lt:lit lv:lav/lvs mg:mlg/plt mi:mri mk:mkd ml:mal mn:mon/khk mr:mar ms:msa/zsm mt:mlt "
        "my:mya nb:nob ne:nep/npi nl:nld nn:nno no:nor/nob oc:oci om:orm/gaz or:ori/ory os:oss pa:pan "
        "pl:pol ps:pus/pbt pt:por qu:que/quy rm:roh ro:ron ru:rus rw:kin sa:san sc:srd sd:snd se:sme "
        "si:sin sk:slk sl:slv sn:sna so:som sq:sqi/als sr:srp st:sot su:sun sv:swe sw:swa/swh ta:tam "
        "te:tel tg:tgk th:tha tk:tuk tl:tgl tr:tur tt:tat ug:uig uk:ukr ur:urd uz:uzb/uzn vi:vie vo:vol "
        "wa:wln wo:wol xh:xho yi:yid/ydd yo:yor za:zha zh:zho/cmn zu:zul "
    ).split()
)
