"""Word problems about what things cost, earn and bring."""

from __future__ import annotations

from tokmill.demo.draw import Draw
from tokmill.demo.shapes.worked import Worked, round_up
from tokmill.demo.words import CURRENCIES, GOODS, MELONS, PEOPLE, WARES


def change(draw: Draw) -> Worked:
    who, (one, other), money = draw.pick(PEOPLE), draw.pick_two(GOODS), draw.pick(CURRENCIES)
    n, m, x, y = draw.between(2, 9), draw.between(2, 9), draw.between(2, 12), draw.between(2, 12)
    cost = n * x + m * y
    paid = (cost // 50 + 1) * 50
    question = draw.either(
        f"{who.name} buys {n} {one} at {x} {money} each and {m} {other} at {y} {money} each, and pays with "
        f"{paid} {money}. How much change does {who.she} get back?",
        f"At the market, {one} cost {x} {money} apiece and {other} cost {y} {money} apiece. {who.name} takes "
        f"{n} {one} and {m} {other} and hands over {paid} {money}. How many {money} does the seller give back?",
    )
    steps = (
        f"The {one} cost {n} × {x} = {n * x} {money}.",
        f"The {other} cost {m} × {y} = {m * y} {money}.",
        f"Together that is {n * x} + {m * y} = {cost} {money}.",
        f"The change is {paid} - {cost} = {paid - cost} {money}.",
    )
    return Worked(question, steps, paid - cost, f"{paid} - ({n} * {x} + {m} * {y})")


def fence(draw: Draw) -> Worked:
    who, money = draw.pick(PEOPLE), draw.pick(CURRENCIES)
    wide, gate, price = draw.between(6, 40), draw.between(2, 5), draw.between(3, 18)
    long = wide + draw.between(2, 40)
    around = 2 * long + 2 * wide
    question = draw.either(
        f"{who.name} fences in a rectangular garden that is {long} metres long and {wide} metres wide, and leaves "
        f"{gate} metres open for a gate. A metre of fence costs {price} {money}. "
        f"How many {money} does the fence cost?",
        f"A rectangular meadow measures {long} by {wide} metres. {who.name} wants a hedge all around it, except "
        f"for an entrance of {gate} metres. The plants come to {price} {money} for every metre of hedge. "
        f"What does {who.she} pay in all, in {money}?",
    )
    steps = (
        f"Once around is 2 × {long} + 2 × {wide} = {around} metres.",
        f"Without the opening, {around} - {gate} = {around - gate} metres are needed.",
        f"They cost {around - gate} × {price} = {(around - gate) * price} {money}.",
    )
    return Worked(question, steps, (around - gate) * price, f"(2 * ({long} + {wide}) - {gate}) * {price}")


def discount(draw: Draw) -> Worked:
    who, ware, money = draw.pick(PEOPLE), draw.pick(WARES), draw.pick(CURRENCIES)
    price, percent, n = 20 * draw.between(2, 30), 5 * draw.between(1, 9), draw.between(2, 8)
    off = price * percent // 100
    question = draw.either(
        f"A {ware} costs {price} {money}. This week the shop takes {percent} percent off. {who.name} orders {n} of "
        f"them for the village festival. How many {money} does {who.she} pay?",
        f"The regular price of a {ware} is {price} {money}, but members of the club pay {percent} percent less. "
        f"{who.name}, a member, buys {n}. What is the bill, in {money}?",
    )
    steps = (
        f"The reduction is {price} × {percent} ÷ 100 = {off} {money}.",
        f"One {ware} now costs {price} - {off} = {price - off} {money}.",
        f"The order comes to {n} × {price - off} = {n * (price - off)} {money}.",
    )
    return Worked(question, steps, n * (price - off), f"{n} * ({price} - {price} * {percent} // 100)")


def saving(draw: Draw) -> Worked:
    who, ware, money = draw.pick(PEOPLE), draw.pick(WARES), draw.pick(CURRENCIES)
    has, weekly = draw.between(10, 90), draw.between(6, 35)
    price = has + weekly * draw.between(3, 20) + draw.between(0, weekly - 1)
    last, weeks = round_up(
        price - has, weekly, exact="so that many weeks are enough", over="so one more week is needed:"
    )
    question = draw.either(
        f"{who.name} has {has} {money} and puts aside {weekly} {money} every week for a {ware} that costs {price} "
        f"{money}. After how many weeks can {who.she} buy it?",
        f"A {ware} costs {price} {money}. {who.name} already owns {has} {money} and earns {weekly} more each week by "
        f"walking dogs. How many weeks does {who.she} have to work for it?",
    )
    steps = (f"{who.name} still needs {price} - {has} = {price - has} {money}.", last)
    return Worked(question, steps, weeks, f"-(-({price} - {has}) // {weekly})")


def overtime(draw: Draw) -> Worked:
    who, money, wage = draw.pick(PEOPLE), draw.pick(CURRENCIES), draw.between(11, 40)
    extra, hours = wage + draw.between(3, 15), 40 + draw.between(2, 15)
    usual, more = 40 * wage, (hours - 40) * extra
    question = draw.either(
        f"{who.name} earns {wage} {money} an hour for the first 40 hours of a week and {extra} {money} for every hour "
        f"after that. Last week {who.she} worked {hours} hours. How many {money} did {who.she} earn?",
        f"At the sawmill an hour of work pays {wage} {money}, and each hour beyond 40 in a week pays {extra}. "
        f"What is {who.name} owed for a week of {hours} hours, in {money}?",
    )
    steps = (
        f"The first 40 hours bring 40 × {wage} = {usual} {money}.",
        f"The {hours} - 40 = {hours - 40} hours of overtime bring {hours - 40} × {extra} = {more} {money}.",
        f"Together that is {usual} + {more} = {usual + more} {money}.",
    )
    return Worked(question, steps, usual + more, f"40 * {wage} + ({hours} - 40) * {extra}")


def profit(draw: Draw) -> Worked:
    who, fruits, money = draw.pick(PEOPLE), draw.pick(MELONS), draw.pick(CURRENCIES)
    crates, size, price = draw.between(3, 12), draw.between(20, 60), draw.between(2, 6)
    crate_price = draw.between(size * price // 3, size * price // 2)
    spoiled = draw.between(3, size // 2)
    pieces, paid = crates * size, crates * crate_price
    sold = pieces - spoiled
    question = draw.either(
        f"{who.name} buys {crates} crates with {size} {fruits} each and pays {crate_price} {money} a crate. "
        f"{who.She} has to throw {spoiled} {fruits} away and sells all the others at {price} {money} apiece. "
        f"How many {money} does {who.she} earn in the end?",
        f"A market trader pays {crate_price} {money} for a crate of {size} {fruits} and takes {crates} crates. "
        f"After {spoiled} {fruits} have been thrown away, the rest are sold for {price} {money} each. "
        f"What is the profit, in {money}?",
    )
    steps = (
        f"The crates cost {crates} × {crate_price} = {paid} {money}.",
        f"They hold {crates} × {size} = {pieces} {fruits}, of which {pieces} - {spoiled} = {sold} can be sold.",
        f"The sale brings {sold} × {price} = {sold * price} {money}.",
        f"The profit is {sold * price} - {paid} = {sold * price - paid} {money}.",
    )
    check = f"({crates} * {size} - {spoiled}) * {price} - {crates} * {crate_price}"
    return Worked(question, steps, sold * price - paid, check)
