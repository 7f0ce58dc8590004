"""Word problems about rates, timetables and durations."""

from __future__ import annotations

from tokmill.demo.draw import Draw
from tokmill.demo.shapes.worked import Worked, count_of
from tokmill.demo.words import PEOPLE, VEHICLES


def two_legs(draw: Draw) -> Worked:
    what = draw.pick(VEHICLES)
    t, u, v, w = draw.between(2, 6), draw.between(2, 6), 5 * draw.between(8, 16), 5 * draw.between(8, 18)
    first, second, rest = t * v, u * w, 10 * draw.between(2, 30)
    route = first + second + rest
    question = draw.either(
        f"{what} has {route} kilometres to go. It travels for {t} hours at {v} kilometres per hour and then for "
        f"{u} hours at {w} kilometres per hour. How many kilometres are still left?",
        f"The way to the coast is {route} kilometres long. {what} sets out at {v} kilometres per hour for the "
        f"first {t} hours and at {w} kilometres per hour for the next {u} hours. "
        f"How many kilometres remain after that?",
    )
    steps = (
        f"In the first {t} hours it covers {t} × {v} = {first} kilometres.",
        f"In the next {u} hours it covers {u} × {w} = {second} kilometres.",
        f"That makes {first} + {second} = {first + second} kilometres.",
        f"What is left is {route} - {first + second} = {rest} kilometres.",
    )
    return Worked(question, steps, rest, f"{route} - {t} * {v} - {u} * {w}")


def leaking_tank(draw: Draw) -> Worked:
    leak, net, minutes, there = (
        draw.between(2, 9),
        draw.between(3, 25),
        draw.between(5, 60),
        draw.between(10, 90),
    )
    pump, holds = leak + net, there + net * minutes
    question = draw.either(
        f"A pump pours {pump} litres a minute into a tank, while {leak} litres a minute leak out. The tank holds "
        f"{holds} litres and already contains {there}. After how many minutes is it full?",
        f"A rain barrel for {holds} litres has {there} litres in it. During a storm {pump} litres a minute run in "
        f"and {leak} litres a minute escape through a crack. How many minutes does it take to fill the barrel?",
    )
    steps = (
        f"Each minute the water grows by {pump} - {leak} = {net} litres.",
        f"There is room for {holds} - {there} = {holds - there} litres.",
        f"That takes {holds - there} ÷ {net} = {minutes} minutes.",
    )
    return Worked(question, steps, minutes, f"({holds} - {there}) // ({pump} - {leak})")


def timetable(draw: Draw) -> Worked:
    first, hours, seats = draw.between(5, 9), draw.between(3, 12), draw.between(18, 80)
    every = draw.pick([10, 12, 15, 20, 30])
    last, gaps = first + hours, hours * 60 // every
    question = draw.either(
        f"The first ferry leaves at {first}:00 and another follows every {every} minutes; the last one leaves at "
        f"{last}:00. Each ferry has room for {seats} passengers. How many passengers can cross in a day?",
        f"A shuttle bus with {seats} seats leaves the station every {every} minutes, for the first time at "
        f"{first}:00 and for the last time at {last}:00. How many seats does it offer in all?",
    )
    steps = (
        f"From the first departure to the last it is {last} - {first} = {hours} hours.",
        f"In minutes that is {hours} × 60 = {hours * 60}.",
        f"There are {hours * 60} ÷ {every} = {gaps} intervals, and {gaps} + 1 = {gaps + 1} departures.",
        f"Together they have room for {gaps + 1} × {seats} = {(gaps + 1) * seats} people.",
    )
    return Worked(question, steps, (gaps + 1) * seats, f"(({last} - {first}) * 60 // {every} + 1) * {seats}")


def next_bus(draw: Draw) -> Worked:
    who, every, first = draw.pick(PEOPLE), draw.pick([8, 9, 11, 12, 14, 16, 18, 25]), draw.between(5, 8)
    at, minute = first + draw.between(1, 9), draw.between(2, 59)
    minute -= ((at - first) * 60 + minute) % every == 0  # never on the dot: somebody has to wait
    passed = (at - first) * 60 + minute
    gone, ago = divmod(passed, every)
    question = draw.either(
        f"Trams leave every {every} minutes, the first of them at {first}:00. {who.name} reaches the stop at "
        f"{at}:{minute:02}. How many minutes does {who.she} have to wait for the next tram?",
        f"A cable car departs every {every} minutes, starting at {first}:00. {who.name} arrives at the valley "
        f"station at {at}:{minute:02}. In how many minutes does the next one depart?",
    )
    steps = (
        f"Since {first}:00, {at - first} × 60 + {minute} = {passed} minutes have passed.",
        f"{passed} ÷ {every} = {gone} remainder {ago}, so the last departure was {count_of(ago, 'minute')} ago.",
        f"The next one is in {every} - {ago} = {count_of(every - ago, 'minute')}.",
    )
    return Worked(question, steps, every - ago, f"-(({at} - {first}) * 60 + {minute}) % {every}")


def two_machines(draw: Draw) -> Worked:
    slow, fast, alone, together = (
        draw.between(20, 90),
        draw.between(30, 140),
        draw.between(2, 6),
        draw.between(2, 9),
    )
    done = slow * alone
    pages = done + (slow + fast) * together
    question = draw.either(
        f"An old press prints {slow} posters an hour. After it has run alone for {alone} hours, a second press "
        f"that prints {fast} posters an hour joins in, and both run until {pages} posters are done. "
        f"How many hours has the old press run by then?",
        f"One loom weaves {slow} centimetres of cloth an hour, another weaves {fast}. The first works alone for "
        f"{alone} hours, then both work until there are {pages} centimetres in all. "
        f"How many hours pass from start to finish?",
    )
    steps = (
        f"Alone, the first makes {alone} × {slow} = {done}.",
        f"That leaves {pages} - {done} = {pages - done}.",
        f"Both together make {slow} + {fast} = {slow + fast} an hour.",
        f"They need {pages - done} ÷ {slow + fast} = {together} hours.",
        f"In all that is {alone} + {together} = {alone + together} hours.",
    )
    check = f"{alone} + ({pages} - {alone} * {slow}) // ({slow} + {fast})"
    return Worked(question, steps, alone + together, check)


def reading(draw: Draw) -> Worked:
    who, on_weekdays, on_weekends = draw.pick(PEOPLE), draw.between(6, 25), draw.between(15, 60)
    weeks, rest = draw.between(2, 5), draw.between(10, 150)
    weekly = 5 * on_weekdays + 2 * on_weekends
    pages = weeks * weekly + rest
    question = draw.either(
        f"{who.name} reads {on_weekdays} pages on each of the 5 weekdays and {on_weekends} pages on each of the 2 "
        f"days of the weekend. The novel has {pages} pages. How many are left after {weeks} weeks?",
        f"A choir director has {pages} pages of old music to copy. {who.She} manages {on_weekdays} "
        f"pages a day from Monday to Friday and {on_weekends} pages a day on Saturday and Sunday. "
        f"How many pages remain after {weeks} full weeks?",
    )
    steps = (
        f"The weekdays give 5 × {on_weekdays} = {5 * on_weekdays} pages.",
        f"The weekend gives 2 × {on_weekends} = {2 * on_weekends} pages.",
        f"A week gives {5 * on_weekdays} + {2 * on_weekends} = {weekly} pages.",
        f"In {weeks} weeks that is {weeks} × {weekly} = {weeks * weekly} pages.",
        f"What remains is {pages} - {weeks * weekly} = {rest} pages.",
    )
    return Worked(question, steps, rest, f"{pages} - {weeks} * (5 * {on_weekdays} + 2 * {on_weekends})")


def lengths(draw: Draw) -> Worked:
    who, n, each, rest = draw.pick(PEOPLE), draw.between(4, 30), draw.between(25, 95), draw.between(5, 40)
    swum, rested = n * each, (n - 1) * rest
    question = draw.either(
        f"{who.name} swims {n} lengths of the pool. Each takes {each} seconds, and {who.she} rests for {rest} seconds "
        f"after every length but the last. How many seconds does the whole training take?",
        f"A potter glazes {n} bowls one after another. Each needs {each} seconds on the wheel, and between two bowls "
        f"the wheel is cleaned for {rest} seconds. How many seconds pass until the last bowl is done?",
    )
    steps = (
        f"The {n} rounds take {n} × {each} = {swum} seconds.",
        f"There are {n} - 1 = {n - 1} pauses, which take {n - 1} × {rest} = {rested} seconds.",
        f"In all that is {swum} + {rested} = {swum + rested} seconds.",
    )
    return Worked(question, steps, swum + rested, f"{n} * {each} + ({n} - 1) * {rest}")


def candle(draw: Draw) -> Worked:
    hours, burns = draw.between(2, 9), draw.between(4, 17)
    tall = hours * burns // 10 + draw.between(2, 20)
    question = draw.either(
        f"A candle is {tall} centimetres tall and grows {burns} millimetres shorter every hour. "
        f"How many millimetres are left of it after {hours} hours?",
        f"An icicle of {tall} centimetres hangs from the roof. In the sun it loses {burns} millimetres an hour. "
        f"How many millimetres long is it after {hours} hours?",
    )
    steps = (
        f"At first it measures {tall} × 10 = {tall * 10} millimetres.",
        f"In {hours} hours it loses {hours} × {burns} = {hours * burns} millimetres.",
        f"What is left is {tall * 10} - {hours * burns} = {tall * 10 - hours * burns} millimetres.",
    )
    return Worked(question, steps, tall * 10 - hours * burns, f"{tall} * 10 - {hours} * {burns}")
