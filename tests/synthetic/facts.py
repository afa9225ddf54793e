"""What the marks of a sample say, and the critical words each phrasing must have.

The answers are computed here a second time, from the marks alone: one list of (pattern, rule) per kind,
where a rule gives the critical words of the answer.
"""

import re
from collections import Counter

from data_modules.synthetic.types import COLOURS, LABELS, NUMBERS

REGIONS = ("top left", "top", "top right", "left", "middle", "right", "bottom left", "bottom", "bottom right")
STEPS = {"right of": (1, 0), "left of": (-1, 0), "below": (0, 1), "above": (0, -1)}
ORDINALS = {"first": 0, "second": 1, "third": 2, "fourth": 3, "last": -1}


def things(sample):
    """The marks at the same point, as one dictionary each, in order of appearance."""
    points = {}
    for mark in sample.marks:
        points.setdefault((mark.x, mark.y), {})[mark.label] = LABELS[mark.label][mark.value]
    return [dict(labels, x=x, y=y) for (x, y), labels in points.items()]


def scene(sample):
    found = []
    for thing in things(sample):
        column, row = (min(int(thing[axis]) // 43, 2) for axis in "xy")
        found.append(dict(thing, at=(column, row), region=REGIONS[3 * row + column]))
    return sorted(found, key=lambda thing: thing["at"][::-1])


def words(state, *keys):
    return " ".join(thing[key] for thing in state for key in keys)


def pick(state, **wanted):
    found = [thing for thing in state if all(thing[key] == value for key, value in wanted.items())]
    assert len(found) == 1, wanted
    return found


def beside(state, side, colour, shape):
    (thing,) = pick(state, colour=colour, shape=shape)
    return pick(state, at=tuple(a + b for a, b in zip(thing["at"], STEPS[side], strict=True)))


def sized(state, size):
    group = [thing for thing in state if thing["size"] == size]
    return ("one " if len(group) == 1 else "") + words(group, "colour", "shape", "region")


SCENE = [
    (r"Describe all the objects in the picture\.", lambda s: words(s, "size", "colour", "shape", "region")),
    (r"What do you see in this picture\?", lambda s: f"{NUMBERS[len(s)]} {words(s, 'colour', 'shape')}"),
    (
        r"How many objects are in the picture\?",
        lambda s: f"{NUMBERS[len(s)]} {words(s[:1], 'colour', 'shape')}",
    ),
    (r"Which of the objects are (\w+)\?", sized),
    (
        r"What is at the (.+) of the picture\?",
        lambda s, r: words(pick(s, region=r), "size", "colour", "shape"),
    ),
    (r"Which object do .* the (.+) area\?", lambda s, r: words(pick(s, region=r), "size", "colour", "shape")),
    (r"Where is the (\w+) (\w+)\?", lambda s, c, o: words(pick(s, colour=c, shape=o), "region")),
    (r"In which .* the (\w+) (\w+)\?", lambda s, c, o: words(pick(s, colour=c, shape=o), "region", "size")),
    (r"How big is the (\w+) (\w+)\?", lambda s, c, o: words(pick(s, colour=c, shape=o), "region", "size")),
    (r"What colour is the (\w+)\?", lambda s, o: words(pick(s, shape=o), "region", "colour")),
    (r"Tell me the colour and size of the (\w+)\.", lambda s, o: words(pick(s, shape=o), "colour", "size")),
    (
        r"What is directly (right of|left of|below|above) the (\w+) (\w+)\?",
        lambda s, *found: words(beside(s, *found), "size", "colour", "shape"),
    ),
]


def one(many):
    return "cross" if many == "crosses" else many.removesuffix("s")


def number(state, **wanted):
    return sum(all(thing[key] == value for key, value in wanted.items()) for thing in state)


COUNT = [
    (r"How many objects are there altogether\?", lambda s: NUMBERS[len(s)]),
    (r"How many (\w+) (\w+) are there\?", lambda s, c, o: NUMBERS[number(s, colour=c, shape=one(o))]),
    (
        r"Count the (\w+) (\w+) in this image\.",
        lambda s, c, o: f"{NUMBERS[number(s, colour=c, shape=one(o))]} {NUMBERS[len(s)]}",
    ),
    (r"How many (\w+) can you see here\?", lambda s, o: NUMBERS[number(s, shape=one(o))]),
    (r"How many (\w+) objects are in the picture\?", lambda s, c: NUMBERS[number(s, colour=c)]),
]


def sign(sample):
    """The code, then the colours of the plate and of the text, read from the pixels."""
    marks = sorted(sample.marks, key=lambda mark: mark.x)
    code = "".join(LABELS["char"][mark.value] for mark in marks)
    y, x = int(marks[0].y), int(marks[0].x)
    box = sample.image[y - 12 : y + 13, max(x - 9, 0) : int(marks[-1].x) + 9].reshape(-1, 3)
    hues = {value: name for name, value in COLOURS.items()}
    seen = [hues[value] for value, _ in Counter(map(tuple, box.tolist())).most_common() if value in hues]
    border = sample.image[y, max(x - 13, 0) : x].tolist()
    plate = next(hues[tuple(value)] for value in border if tuple(value) in hues)
    return code, plate, next(hue for hue in seen if hue != plate)


SIGN = [
    (r"What does the sign say\?", lambda s: f"{s[0]} {s[2]} {s[1]}"),
    (r"Read the text on the plate\.", lambda s: f"{s[0]} {NUMBERS[len(s[0])]}"),
    (r"Spell the text on the sign\.", lambda s: " ".join(s[0])),
    (r"Which character comes first on the sign\?", lambda s: s[0][0]),
    (r"Which character comes last on the sign\?", lambda s: s[0][-1]),
    (r"What is written at the start and the end\?", lambda s: f"{s[0][0]} {s[0][-1]}"),
    (r"How many characters are on the sign\?", lambda s: f"{NUMBERS[len(s[0])]} {' '.join(s[0])}"),
    (
        r"Describe the sign in detail from left to right\.",
        lambda s: f"{s[1]} {NUMBERS[len(s[0])]} {s[2]} {' '.join(s[0])} {s[0]}",
    ),
    (r"What colour is the sign\?", lambda s: f"{s[1]} {s[0]}"),
    (r"What colour are the characters on the sign\?", lambda s: f"{s[2]} {s[1]}"),
    (r"Which character follows (\w) on the sign\?", lambda s, char: s[0][s[0].index(char) + 1]),
    (r"What is the (\w+) character on the plate\?", lambda s, place: s[0][ORDINALS[place]]),
]


def document(sample):
    """The lines as (field, value), and the colour of the header or "no"."""
    lines = {}
    for thing in sorted(things(sample), key=lambda thing: thing["x"]):
        if "colour" not in thing:
            lines.setdefault(thing["y"], []).append(thing.get("char") or thing["word"])
    header = [thing["colour"] for thing in things(sample) if "colour" in thing]
    return [(lines[y][0], "".join(lines[y][1:])) for y in sorted(lines)], (header or ["no"])[0]


def flat(lines):
    return " ".join(f"{field} {value}" for field, value in lines)


def field_of(state, value):
    fields = [(field, NUMBERS[index]) for index, (field, other) in enumerate(state[0], 1) if other == value]
    assert len(fields) == 1
    return " ".join(fields[0])


def under(state, field):
    return flat([state[0][[line[0] for line in state[0]].index(field) + 1]])


DOCUMENT = [
    (r"What is the value of (\w+)\?", lambda s, field: dict(s[0])[field]),
    (r"Which value stands next to (\w+)\?", lambda s, field: dict(s[0])[field]),
    (r"Which field has the value (\w+)\?", field_of),
    (r"What is on the (\w+) line\?", lambda s, place: flat([s[0][ORDINALS[place]]])),
    (r"What comes directly below (\w+)\?", under),
    (r"Read all lines of the document in order\.", lambda s: flat(s[0])),
    (r"What is written on each line of the document\?", lambda s: flat(s[0])),
    (r"How many lines .*\?", lambda s: f"{NUMBERS[len(s[0])]} {' '.join(field for field, _ in s[0])}"),
    (r"What does the top of the document look like\?", lambda s: f"{s[1]} {s[0][0][0]}"),
]


def chart(sample):
    """Columns as (label, value) from left to right, the sort of the chart and its colour."""
    found = sorted(things(sample), key=lambda thing: thing["x"])
    columns = [
        (thing["word"], LABELS["level"].index(thing["level"]) + 1) for thing in found if "word" in thing
    ]
    tops = [thing for thing in found if "colour" in thing]
    assert [thing["level"] for thing in tops] == [NUMBERS[value] for _, value in columns]
    x, y = int(tops[0]["x"]), int(tops[0]["y"])
    hue = tops[0]["colour"]
    bar = tuple(sample.image[104, x].tolist()) == COLOURS[hue] and sample.image[y - 4, x].min() > 150
    return columns, "bar" if bar else "line", hue


def listed(columns):
    return " ".join(f"{label} {NUMBERS[value]}" for label, value in columns)


def extreme(state, word):
    best = (max if word == "highest" else min)(value for _, value in state[0])
    labels = [column for column in state[0] if column[1] == best]
    assert len(labels) == 1
    return listed(labels)


def compare(state, one, two):
    high, low = sorted([(one, dict(state[0])[one]), (two, dict(state[0])[two])], key=lambda item: -item[1])
    return f"both same {NUMBERS[high[1]]}" if high[1] == low[1] else listed([high, low])


def above(state, word):
    labels = [label for label, value in state[0] if value > NUMBERS.index(word)]
    return ("only " if len(labels) == 1 else "") + " ".join(labels)


CHART = [
    (r"List all values from left to right\.", lambda s: listed(s[0])),
    (
        r"Describe the chart and its values\.",
        lambda s: (
            f"{s[2]} {s[1]} {NUMBERS[len(s[0])]} " + " ".join(f"{NUMBERS[v]} {label}" for label, v in s[0])
        ),
    ),
    (r"How many values .*\?", lambda s: f"{NUMBERS[len(s[0])]} {' '.join(label for label, _ in s[0])}"),
    (r"What sort of chart is this\?", lambda s: f"{s[1]} {s[2]} {NUMBERS[len(s[0])]}"),
    (r"What is the value for (\w+)\?", lambda s, label: NUMBERS[dict(s[0])[label]]),
    (r"How high does the chart go at (\w+)\?", lambda s, label: NUMBERS[dict(s[0])[label]]),
    (r"Which is higher, (\w+) or (\w+)\?", compare),
    (r"Which label has the (highest|lowest) value\?", extreme),
    (r"Which labels have values above (\w+)\?", above),
]


def science(sample):
    """Items as letter -> (level, colour), from left to right."""
    found = sorted((thing for thing in things(sample) if "char" in thing), key=lambda thing: thing["x"])
    return {thing["char"]: (LABELS["level"].index(thing["level"]) + 1, thing["colour"]) for thing in found}


def ranked(state):
    return sorted(state, key=lambda letter: state[letter][0])


def higher(state, one, two):
    return " ".join(sorted((one, two), key=lambda letter: -state[letter][0]))


SCIENCE = [
    (r"Which \w+ .*(?:most|highest|tallest).*\? Choose .*\.", lambda s: ranked(s)[-1]),
    (r"Which \w+ .*(?:least|lowest|shortest).*\? Choose .*\.", lambda s: ranked(s)[0]),
    (
        r"Order the \w+ from lowest to highest\.",
        lambda s: " ".join(f"{x} {NUMBERS[s[x][0]]}" for x in ranked(s)),
    ),
    (r"Which level does \w+ (\w) have\?", lambda s, letter: NUMBERS[s[letter][0]]),
    (r"What colour is the .+ (\w)\?", lambda s, letter: s[letter][1]),
    (r"Which one is higher, \w+ (\w) or \w+ (\w)\?", higher),
    (r"What are the colours of .*\?", lambda s: " ".join(f"{x} {s[x][1]}" for x in s)),
    (r"Describe every .*\.", lambda s: " ".join(f"{x} {s[x][1]} {NUMBERS[s[x][0]]}" for x in s)),
    (r"How many .* are in the picture\?", lambda s: f"{NUMBERS[len(s)]} {' '.join(s)}"),
]

STATES = {
    "scene": (scene, SCENE),
    "count": (things, COUNT),
    "sign": (sign, SIGN),
    "document": (document, DOCUMENT),
    "chart": (chart, CHART),
    "science": (science, SCIENCE),
}


def expected(sample, question):
    """The critical words that the answer to a question must have, each once."""
    read, rules = STATES[sample.kind]
    found = [(rule, match) for pattern, rule in rules if (match := re.fullmatch(pattern, question))]
    assert len(found) == 1, f"{len(found)} rules for {question!r}"
    rule, match = found[0]
    return tuple(dict.fromkeys(rule(read(sample), *match.groups()).split()))
