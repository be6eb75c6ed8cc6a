"""Made-up postal addresses as words with a tag for each: name, street, number, town, code, country."""

TAGS = ("NAME", "STREET", "NUMBER", "TOWN", "CODE", "COUNTRY")
FIRST = ["anna", "ben", "carla", "dmitri", "elif", "farid", "grace", "hugo", "ines", "jonas", "kim", "lena"]
LAST = ["abel", "brandt", "costa", "dupont", "eriksen", "fischer", "garcia", "horvat", "ivanov", "jansen"]
TREES = ["oak", "elm", "birch", "maple", "cedar", "linden", "poplar", "willow"]
WAYS = ["street", "road", "lane", "avenue", "alley", "square"]
TOWNS = ["abelton", "brandtburg", "costaville", "oakham", "elmstead", "birchfield", "jansenby", "lindenau"]
COUNTRIES = ["norland", "sudland", "estria", "westmark"]


def write_address(rng):
    """The words of an address and their tags, in one of three orders."""
    number = str(rng.randint(1, 250)) + rng.choice(["", "", "a", "b"])
    code = str(rng.randint(100, 99999))
    street = [(rng.choice(TREES + LAST), "STREET"), (rng.choice(WAYS), "STREET")]
    name = [(rng.choice(FIRST), "NAME"), (rng.choice(LAST), "NAME")]
    town, place = [(rng.choice(TOWNS), "TOWN")], [(code, "CODE")]
    order = rng.randrange(3)
    if order == 0:
        parts = name + street + [(number, "NUMBER")] + place + town
    elif order == 1:
        parts = [*name, (number, "NUMBER"), *street, *town, *place]
    else:
        parts = [*street, (number, "NUMBER"), *town, *place, *name]
    if rng.random() < 0.5:
        parts = [*parts, (rng.choice(COUNTRIES), "COUNTRY")]
    words, tags = zip(*parts, strict=True)
    return list(words), [TAGS.index(tag) for tag in tags]


def spell(word, buckets=512):
    """A word as the numbers of its hashed shape, start and end."""
    shape = "".join("9" if letter.isdigit() else "x" for letter in word)
    pieces = (shape, "^" + word[:3], word[-3:] + "$")
    return [sum(ord(letter) * 31**place for place, letter in enumerate(piece)) % buckets for piece in pieces]
