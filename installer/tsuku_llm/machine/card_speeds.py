"""The memory bandwidth of graphics cards by their names, in GB/s. Pure.

A token of a model takes about as long as reading its weights, so this number compares cards: those
of one size when a build is chosen (``choose.fitting``), and all when a model is placed
(``launch.memory.placement``). The vendors publish it in the data sheet of each card. A card that is
not in the table has no known speed.
"""

from __future__ import annotations

import re

_NVIDIA = """
rtx 5090=1792 rtx 5080=960 rtx 5070 ti=896 rtx 5070=672 rtx 5060 ti=448 rtx 5060=448 rtx 5050=320
rtx 5090 laptop=896 rtx 5080 laptop=896 rtx 5070 ti laptop=672 rtx 5070 laptop=384
rtx 5060 laptop=384
rtx 4090=1008 rtx 4080 super=736 rtx 4080=717 rtx 4070 ti super=672 rtx 4070 ti=504
rtx 4070 super=504 rtx 4070=504 rtx 4060 ti=288 rtx 4060=272
rtx 4090 laptop=576 rtx 4080 laptop=432 rtx 4070 laptop=256 rtx 4060 laptop=256 rtx 4050 laptop=192
rtx 3090 ti=1008 rtx 3090=936 rtx 3080 ti=912 rtx 3080=760 rtx 3070 ti=608 rtx 3070=448
rtx 3060 ti=448 rtx 3060=360 rtx 3050=224
rtx 3080 ti laptop=512 rtx 3080 laptop=448 rtx 3070 ti laptop=448 rtx 3070 laptop=448
rtx 3060 laptop=336 rtx 3050 ti laptop=192 rtx 3050 laptop=192
rtx 2080 ti=616 rtx 2080 super=496 rtx 2080=448 rtx 2070 super=448 rtx 2070=448
rtx 2060 super=448 rtx 2060=336 titan rtx=672 titan v=653 titan xp=548
gtx 1660 ti=288 gtx 1660 super=336 gtx 1660=192 gtx 1650 super=192 gtx 1650=128
gtx 1080 ti=484 gtx 1080=320 gtx 1070 ti=256 gtx 1070=256 gtx 1060=192 gtx 1050 ti=112 gtx 1050=112
gtx titan x=336 gtx 980 ti=336 gtx 980=224 gtx 970=224 quadro m6000=317
gt 1030=48 gt 730=14 gt 710=14
rtx pro 6000=1792 rtx pro 5000=1344 rtx pro 4500=896 rtx pro 4000=672 rtx pro 2000=288
rtx 6000 ada=960 rtx 5000 ada=576 rtx 4500 ada=432 rtx 4000 ada=360 rtx 4000 sff ada=280
rtx 2000 ada=224 rtx a6000=768 rtx a5500=768 rtx a5000=768 rtx a4500=640 rtx a4000=448
rtx a2000=288 quadro rtx 8000=672 quadro rtx 6000=672 quadro rtx 5000=448 quadro rtx 4000=416
quadro gv100=870 quadro p6000=432
gb300=8000 b300=8000 gb200=8000 b200=8000 h200=4800 gh200=4000 h100=3350 h100 pcie=2039
h100 nvl=3900 h800=3350 h20=4000 a100=1555 a100 80gb=1935 a100 sxm4 80gb=2039 a100 pcie 80gb=1935
a800=1935 a40=696 a30=933 a10=600 a10g=600 a16=200 a2=200 l40s=864 l40=864 l20=864 l4=300 t4=320
v100=900 p100=732 p40=347 p4=192 m60=160 m40=288 k80=240
gb10=273 orin=204 thor=273
"""

_AMD = """
rx 9070 xt=640 rx 9070 gre=432 rx 9070=640 rx 9060 xt=320
rx 7900 xtx=960 rx 7900 xt=800 rx 7900 gre=576 rx 7900m=576 rx 7800 xt=624 rx 7700 xt=432
rx 7600 xt=288 rx 7600=288
rx 6950 xt=576 rx 6900 xt=512 rx 6800 xt=512 rx 6800=512 rx 6750 xt=432 rx 6700 xt=384
rx 6700=320 rx 6650 xt=280 rx 6600 xt=256 rx 6600=224 rx 6500 xt=144 rx 6400=128
rx 5700 xt=448 rx 5700=448 rx 5600 xt=288 rx 5500 xt=224 radeon vii=1024 rx vega=410
rx 590=256 rx 580=256 rx 570=224 rx 480=256 rx 470=211 rx 560=112 rx 550=112
pro w7900=864 pro w7800=576 pro w7700=576 pro w7600=288 pro w6800=512 pro w6600=224
pro vii=1024 ai pro r9700=640
mi355x=8000 mi350x=8000 mi325x=6000 mi300x=5300 mi300a=5300 mi250x=3277 mi250=3277 mi210=1638
mi100=1229 mi60=1024 mi50=1024 mi25=484
radeon 8060s=256 radeon 8050s=256 radeon 890m=120 radeon 880m=120 radeon 780m=90
"""

_INTEL = """
arc b580=456 arc b570=380 arc pro b60=456 arc pro b50=224 arc a770=560 arc a750=512 arc a580=512
arc a380=186 arc a310=124 gpu max 1550=3277 gpu max 1100=1229 gpu flex 170=576 gpu flex 140=186
"""


BANDWIDTH = {
    name.strip(): int(number)
    for rows in (_NVIDIA, _AMD, _INTEL)
    for name, number in re.findall(r"([^=]+)=(\d+)\s+", rows)
}
"""GB/s by the part of the name that tells a card from others, in lower case."""


def bandwidth_of(description: str) -> int | None:
    """Return the bandwidth of the card that a driver calls so, in GB/s; None if not known."""
    words = f" {plain_name(description)} "
    # "rtx 4070" is also in "rtx 4070 ti laptop": the longest name is the card's.
    found = [name for name in BANDWIDTH if f" {name} " in words]
    return BANDWIDTH[max(found, key=len)] if found else None


def plain_name(description: str) -> str:
    """Return a card's name without the driver's in brackets, trade marks and punctuation.

    Two cards with the same plain name are equal.
    """
    text = re.sub(r"\((?:r|tm|c)\)", " ", description.casefold())
    text = re.sub(r"\([^()]*\)", " ", text)
    return " ".join(re.sub(r"[^a-z0-9.+]+", " ", text).split())
