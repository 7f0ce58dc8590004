"""Word problems about shares, remainders, rows and unknowns."""

from __future__ import annotations

from tokmill.demo.draw import Draw
from tokmill.demo.shapes.worked import Worked, round_up
from tokmill.demo.words import ANIMALS, FRUITS, GOODS, PEOPLE, PLACES


def left_over(draw: Draw) -> Worked:
    (who, friend), goods = draw.pick_two(PEOPLE), draw.pick(GOODS)
    size, full = draw.between(6, 24), draw.between(5, 20)
    rest = draw.between(4, size - 1)
    gift = draw.between(2, rest - 2)
    total = size * full + rest
    question = draw.either(
        f"{who.name} packs {total} {goods} into boxes that hold {size} each and fills as many boxes as "
        f"{who.she} can. Of the {goods} left over, {who.she} gives {gift} to {friend.name}. "
        f"How many {goods} stay loose?",
        f"A shelf holds {size} {goods}. {who.name} has {total} {goods} and fills one shelf after another, until "
        f"there are too few for a full shelf. {friend.name} takes {gift} of those. How many {goods} remain?",
    )
    steps = (
        f"{total} ÷ {size} = {full} remainder {rest}, so {rest} {goods} are left over.",
        f"After {friend.name} has {gift} of them, {rest} - {gift} = {rest - gift} {goods} remain.",
    )
    return Worked(question, steps, rest - gift, f"{total} % {size} - {gift}")


def tiles(draw: Draw) -> Worked:
    side, box = draw.pick([20, 25, 50]), draw.between(6, 30)
    long, wide = draw.between(3, 12), draw.between(2, 9)
    across, down = long * 100 // side, wide * 100 // side
    last, boxes = round_up(
        across * down, box, exact="so that many boxes are enough", over="so one more box is needed:"
    )
    question = draw.either(
        f"A floor is {long} metres long and {wide} metres wide. It is laid with square tiles whose sides measure "
        f"{side} centimetres, sold in boxes of {box}. How many boxes are needed?",
        f"For a kitchen of {long} by {wide} metres, square tiles of {side} by {side} centimetres are bought in "
        f"boxes of {box} tiles. How many boxes does the whole floor take?",
    )
    steps = (
        f"Along one side lie {long} × 100 ÷ {side} = {across} tiles.",
        f"Along the other lie {wide} × 100 ÷ {side} = {down} tiles.",
        f"The floor takes {across} × {down} = {across * down} tiles.",
        last,
    )
    check = f"-(-(({long} * 100 // {side}) * ({wide} * 100 // {side})) // {box})"
    return Worked(question, steps, boxes, check)


def flour(draw: Draw) -> Worked:
    who, grams, loaves, days = (
        draw.pick(PEOPLE),
        10 * draw.between(30, 75),
        draw.between(6, 40),
        draw.between(3, 14),
    )
    bag = draw.pick([2, 5, 10, 25])
    daily = grams * loaves
    last, bags = round_up(
        daily * days, bag * 1000, exact="so that many bags are enough", over="so one more bag is needed:"
    )
    question = draw.either(
        f"A loaf needs {grams} grams of flour. {who.name} bakes {loaves} loaves a day for {days} days. Flour is "
        f"sold in bags of {bag} kilograms. How many bags does {who.she} need?",
        f"{who.name} runs a small bakery that makes {loaves} loaves a day from {grams} grams of flour each. "
        f"The mill delivers bags of {bag} kilograms. How many bags will last for {days} days?",
    )
    steps = (
        f"One day takes {loaves} × {grams} = {daily} grams.",
        f"In {days} days that is {days} × {daily} = {daily * days} grams.",
        f"A bag holds {bag} × 1000 = {bag * 1000} grams.",
        last,
    )
    return Worked(question, steps, bags, f"-(-({grams} * {loaves} * {days}) // ({bag} * 1000))")


def ages(draw: Draw) -> Worked:
    older, younger = draw.pick_two(PEOPLE)
    age, gap, ahead = draw.between(5, 40), draw.between(2, 30), draw.between(2, 15)
    later = 2 * age + gap + 2 * ahead
    now = later - 2 * ahead
    question = draw.either(
        f"{older.name} is {gap} years older than {younger.name}. In {ahead} years their ages will add up to "
        f"{later}. How old is {younger.name} today?",
        f"{younger.name} is {gap} years younger than {older.name}. In {ahead} years the two of them will be "
        f"{later} years old together. What is {younger.name}'s age now?",
    )
    steps = (
        f"Today their ages add up to {later} - 2 × {ahead} = {now}.",
        f"Without the difference, {now} - {gap} = {now - gap} is twice {younger.name}'s age.",
        f"So {younger.name} is {now - gap} ÷ 2 = {age} years old.",
    )
    return Worked(question, steps, age, f"({later} - 2 * {ahead} - {gap}) // 2")


def ratio(draw: Draw) -> Worked:
    (one, other), goods = draw.pick_two(PEOPLE), draw.pick(GOODS)
    a, b = draw.pick(
        [(3, 2), (4, 3), (5, 2), (5, 3), (5, 4), (7, 2), (7, 3), (7, 4), (7, 5), (8, 3), (9, 4), (9, 5)]
    )
    part = draw.between(3, 40)
    total = (a + b) * part
    question = draw.either(
        f"{one.name} and {other.name} divide {total} {goods} in the ratio {a} to {b}. "
        f"How many more does {one.name} get than {other.name}?",
        f"For every {a} {goods} that {one.name} packs, {other.name} packs {b}. Together they pack {total} {goods}. "
        f"By how many is {one.name} ahead?",
    )
    steps = (
        f"There are {a} + {b} = {a + b} equal parts.",
        f"One part is {total} ÷ {a + b} = {part} {goods}.",
        f"{one.name} has {a} × {part} = {a * part} and {other.name} has {b} × {part} = {b * part}.",
        f"The difference is {a * part} - {b * part} = {(a - b) * part} {goods}.",
    )
    return Worked(question, steps, (a - b) * part, f"{total} // ({a} + {b}) * ({a} - {b})")


def average(draw: Draw) -> Worked:
    who = draw.pick(PEOPLE)
    a, b, c, e = (draw.between(4, 30) for _ in range(4))
    four, last = a + b + c + e, draw.between(5, 40)
    last += -(four + last) % 5
    mean = (four + last) // 5
    question = draw.either(
        f"In 4 games {who.name} scored {a}, {b}, {c} and {e} points. How many points does {who.she} need in the "
        f"next game for an average of {mean} over all 5 games?",
        f"{who.name} walked {a}, {b}, {c} and {e} kilometres on the first 4 days of a hike. The plan asks for "
        f"{mean} kilometres a day on average over 5 days. How many kilometres are left for the last day?",
    )
    steps = (
        f"An average of {mean} over 5 means a total of 5 × {mean} = {5 * mean}.",
        f"So far the total is {a} + {b} + {c} + {e} = {four}.",
        f"What is missing is {5 * mean} - {four} = {last}.",
    )
    return Worked(question, steps, last, f"5 * {mean} - ({a} + {b} + {c} + {e})")


def giving_away(draw: Draw) -> Worked:
    (who, friend), fruits = draw.pick_two(PEOPLE), draw.pick(FRUITS)
    x, y, unit = draw.between(2, 6), draw.between(2, 6), draw.between(2, 14)
    total = x * y * unit
    first = total // x
    rest = total - first
    second = rest // y
    question = draw.either(
        f"{who.name} picks {total} {fruits} and gives 1/{x} of them to {friend.name}. Then {who.she} dries 1/{y} of "
        f"what is left. How many fresh {fruits} does {who.she} keep?",
        f"A basket holds {total} {fruits}. In the morning {who.name} sells 1/{x} of them, and in the afternoon "
        f"{friend.name} comes by and takes 1/{y} of the rest. How many {fruits} are in the basket at night?",
    )
    steps = (
        f"First {total} ÷ {x} = {first} {fruits} go.",
        f"That leaves {total} - {first} = {rest}.",
        f"Then {rest} ÷ {y} = {second} more go.",
        f"In the end there are {rest} - {second} = {rest - second} {fruits}.",
    )
    return Worked(question, steps, rest - second, f"{total} * ({x} - 1) * ({y} - 1) // ({x} * {y})")


def trees(draw: Draw) -> Worked:
    place, apart, gaps, litres = (
        draw.pick(PLACES),
        draw.between(4, 20),
        draw.between(8, 60),
        draw.between(5, 40),
    )
    metres, row = apart * gaps, gaps + 1
    question = draw.either(
        f"Trees stand on both sides of {place} that is {metres} metres long: one at each end and one every {apart} "
        f"metres in between. Each tree is given {litres} litres of water a week. "
        f"How many litres do all the trees take in a week?",
        f"The gardeners plant lime trees {apart} metres apart along both sides of {place}, from one end to the "
        f"other, over {metres} metres. A young tree needs {litres} litres of water. "
        f"How many litres do they carry for one round of watering?",
    )
    steps = (
        f"On one side there are {metres} ÷ {apart} = {gaps} gaps, so {gaps} + 1 = {row} trees.",
        f"Both sides together have 2 × {row} = {2 * row} trees.",
        f"They take {2 * row} × {litres} = {2 * row * litres} litres.",
    )
    return Worked(question, steps, 2 * row * litres, f"2 * ({metres} // {apart} + 1) * {litres}")


def heads_and_legs(draw: Draw) -> Worked:
    who, (birds, beasts) = draw.pick(PEOPLE), draw.pick(ANIMALS)
    two, four = draw.between(3, 60), draw.between(3, 60)
    heads, legs = two + four, 2 * two + 4 * four
    question = draw.either(
        f"{who.name} keeps {birds} and {beasts}. {who.She} counts {heads} heads and {legs} legs. "
        f"How many {beasts} are there?",
        f"On a farm live {heads} animals, all of them {birds} or {beasts}. Together they have {legs} legs. "
        f"How many {beasts} does {who.name} have to feed?",
    )
    steps = (
        f"If all of them were {birds}, there would be 2 × {heads} = {2 * heads} legs.",
        f"There are {legs} - {2 * heads} = {legs - 2 * heads} legs more than that.",
        f"Each of the {beasts} brings 4 - 2 = 2 more, so there are {legs - 2 * heads} ÷ 2 = {four} {beasts}.",
    )
    return Worked(question, steps, four, f"({legs} - 2 * {heads}) // (4 - 2)")
