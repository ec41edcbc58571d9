"""Word lists that the generated tasks draw from."""

_TRAIN = """
fruits: apple pear plum cherry banana mango grape lemon lime peach fig kiwi melon orange apricot
animals: cat dog horse cow sheep goat lion tiger bear wolf fox rabbit mouse deer camel
colors: red blue green yellow black white brown pink purple orange grey gold silver violet teal
cities: Paris London Rome Berlin Madrid Tokyo Cairo Lima Oslo Vienna Athens Dublin Delhi \
Boston Miami
countries: France Spain Italy Germany Japan Egypt Peru Norway Austria Greece Ireland India \
Brazil Canada Chile
tools: hammer saw drill wrench pliers chisel file axe shovel rake ladder level clamp knife brush
vegetables: carrot onion potato tomato pepper bean pea cabbage spinach garlic celery leek \
radish corn beet
sports: tennis soccer hockey rugby golf boxing rowing skiing surfing cycling running swimming \
judo polo chess
instruments: piano violin guitar flute drum trumpet harp cello organ banjo horn oboe tuba viola lute
jobs: baker nurse teacher pilot doctor farmer cook judge lawyer painter writer actor miner \
sailor tailor
drinks: water tea coffee milk juice cider lemonade cocoa soda wine beer tonic cola punch mead
clothes: shirt coat hat scarf glove sock shoe belt dress skirt jacket boot sweater tie cap
metals: iron gold silver copper tin lead zinc nickel steel brass bronze cobalt titanium chrome \
mercury
trees: oak pine elm birch maple cedar willow ash beech palm fir spruce larch poplar walnut
birds: robin eagle owl hawk crow duck goose swan parrot penguin heron finch sparrow stork raven
vehicles: car bus train truck bike boat ship plane tram van taxi scooter tractor ferry canoe
names: Ana Ben Carl Dora Emma Finn Gina Hugo Iris Jack Kate Liam Mia Noah Olga
shapes: circle square triangle cube sphere cone cylinder oval star heart ring line arc spiral cross
furniture: chair table bed desk sofa shelf lamp bench stool cabinet mirror rug drawer couch crib
languages: Python Java Rust Go Ruby Perl Swift Scala Lua Haskell Erlang Julia Fortran Lisp Ada
"""

_HELD_OUT = """
planets: Mercury Venus Earth Mars Jupiter Saturn Uranus Neptune Pluto Ceres
flowers: rose tulip lily daisy violet iris poppy orchid lotus pansy
spices: salt pepper cumin ginger clove thyme basil mint sage saffron
rivers: Nile Rhine Danube Thames Seine Volga Ganges Amazon Congo Po
games: chess poker bridge dominoes checkers tag darts bingo solitaire go
"""


def _parse(text: str) -> dict[str, list[str]]:
    lines = (line.partition(": ") for line in text.strip().splitlines())
    return {topic: words.split() for topic, _, words in lines}


TRAIN = _parse(_TRAIN)
HELD_OUT = _parse(_HELD_OUT)
TRAIN_COLUMNS = (
    "price", "size", "age", "weight", "score", "year", "rank", "cost", "speed", "count",
)  # fmt: skip
HELD_OUT_COLUMNS = ("height", "stock", "level")
