"""Typical first cells of a data analysis, to choose the warm-up by. None is a benchmark's cell.

Each is run in a fork of a process that has imported numpy, pandas and matplotlib, as the first and
only one. The value of its last line is shown as text and, if it has any, as HTML.
"""

_SALES = """
import numpy as np, pandas as pd
rng = np.random.default_rng(3)
sales = pd.DataFrame({
    "day": pd.date_range("2023-03-01", periods=240, freq="D"),
    "shop": rng.choice(["north", "south", "west"], 240),
    "item": rng.choice(["tea", "rice", "salt", "oil"], 240),
    "units": rng.integers(1, 40, 240),
    "price": rng.normal(12.0, 3.0, 240).round(2),
})
"""
_TEXT = """
import io
import pandas as pd
text = "id,name,joined,score\\n" + "\\n".join(
    f"{n},  Person {n} ,2022-0{n % 9 + 1}-1{n % 7},{n * 1.5 if n % 5 else ''}" for n in range(90)
)
"""

CELLS = {
    "frame": "import pandas as pd\npd.DataFrame({'city': ['Oslo', 'Rome'], 'people': [0.7, 2.8]})",
    "series": "import pandas as pd\npd.Series([3, 1, 2], index=list('abc')).mul(2).to_dict()",
    "head": _SALES + "sales.head(10)",
    "info": _SALES + "import io\nsales.info(buf=io.StringIO())\nsales.dtypes",
    "describe": _SALES + "sales.describe(include='all')",
    "filter": _SALES + "sales[(sales.units > 20) & (sales.shop == 'west')].shape",
    "query": _SALES + "sales.query('price < 10 and units >= 5')[['item', 'price']].tail(3)",
    "assign": _SALES + "sales.assign(total=lambda d: d.units * d.price).nlargest(5, 'total')",
    "group_mean": _SALES + "sales.groupby('shop')['price'].mean().round(1)",
    "group_agg": _SALES
    + "sales.groupby(['shop', 'item']).agg(n=('units', 'size'), top=('price', 'max'))",
    "group_apply": _SALES
    + "sales.groupby('item')['units'].transform(lambda s: s - s.mean()).std()",
    "pivot": _SALES
    + "sales.pivot_table(index='shop', columns='item', values='units', aggfunc='sum')",
    "crosstab": _SALES + "pd.crosstab(sales.shop, sales.item)",
    "melt": _SALES
    + "sales.melt(id_vars='shop', value_vars=['units', 'price']).sample(4, random_state=1)",
    "counts": _SALES + "sales['item'].value_counts(normalize=True)",
    "sort": _SALES + "sales.sort_values(['shop', 'price'], ascending=[True, False]).iloc[:7]",
    "merge": _SALES + "names = pd.DataFrame({'shop': ['north', 'west'], 'boss': ['Ann', 'Bo']})\n"
    "sales.merge(names, on='shop', how='left')['boss'].isna().sum()",
    "concat": _SALES + "pd.concat([sales.head(3), sales.tail(3)], ignore_index=True)",
    "resample": _SALES + "sales.set_index('day')['units'].resample('MS').sum()",
    "rolling": _SALES + "sales['price'].rolling(7, min_periods=1).mean().describe()",
    "dates": _SALES + "sales['day'].dt.day_name().str[:3].value_counts().to_dict()",
    "corr": _SALES + "sales[['units', 'price']].corr()",
    "cut": _SALES
    + "pd.cut(sales.price, bins=[0, 8, 12, 99], labels=['low', 'mid', 'high']).value_counts()",
    "apply_rows": _SALES + "sales.apply(lambda row: row['units'] * row['price'], axis=1).sum()",
    "read_csv": _TEXT + "pd.read_csv(io.StringIO(text), parse_dates=['joined']).tail()",
    "clean": _TEXT + "frame = pd.read_csv(io.StringIO(text))\n"
    "frame['name'] = frame['name'].str.strip().str.upper().str.replace('PERSON', 'P')\n"
    "frame['score'] = frame['score'].fillna(frame['score'].median())\n"
    "frame['joined'] = pd.to_datetime(frame['joined'])\n"
    "frame.drop_duplicates().dropna().isna().sum()",
    "to_csv": _SALES + "len(sales.to_csv(index=False)), len(sales.to_json(orient='records'))",
    "read_json": "import io, pandas as pd\n"
    'pd.read_json(io.StringIO(\'[{"a": 1, "b": "x"}, {"a": 2, "b": null}]\'))',
    "records": _SALES + "sales.head(20).to_dict('records')[-1]['item']",
    "line_plot": _SALES + "import io, matplotlib.pyplot as plt\n"
    "sales.groupby('day')['units'].sum().plot(title='units')\n"
    "plt.tight_layout(); plt.savefig(io.BytesIO())",
    "bar_plot": _SALES + "import io, matplotlib.pyplot as plt\n"
    "fig, ax = plt.subplots(figsize=(6, 3))\n"
    "ax.bar(['a', 'b', 'c'], [3, 5, 2], color='tab:green'); ax.set_ylabel('n'); ax.grid(True)\n"
    "fig.savefig(io.BytesIO(), format='png', dpi=80)",
    "hist_plot": _SALES + "import io, matplotlib.pyplot as plt\n"
    "fig, axes = plt.subplots(1, 2)\n"
    "axes[0].hist(sales.price, bins=20)\n"
    "axes[1].scatter(sales.units, sales.price, s=8, label='x')\n"
    "axes[1].legend(); fig.suptitle('both'); fig.savefig(io.BytesIO())",
    "linear_algebra": "import numpy as np\na = np.arange(36.0).reshape(6, 6) + np.eye(6) * 9\n"
    "np.linalg.solve(a, np.ones(6)), np.linalg.eigvals(a).real.max(), np.linalg.svd(a)[1]",
    "arrays": "import numpy as np\nx = np.linspace(0, 6.3, 500)\n"
    "y = np.sin(x) + np.random.normal(0, 0.1, 500)\n"
    "np.polyfit(x, y, 3), np.percentile(y, [5, 50, 95]), np.where(y > 0.5)[0][:5]",
    "primes": "def is_prime(p):\n    return all(p % d for d in range(2, int(p**0.5) + 1))\n"
    "def primes(n):\n    return [p for p in range(2, n) if is_prime(p)]\n"
    "print(primes(400)[-5:])\nsum(primes(300))",
    "words": "from collections import Counter, defaultdict\nimport re\n"
    "text = 'the cat and the dog and the bird ' * 30\n"
    "by = defaultdict(list)\n"
    "for word in re.findall(r'\\w+', text):\n    by[word[0]].append(word)\n"
    "Counter(text.split()).most_common(3), {k: len(v) for k, v in by.items()}",
    "json": 'import json\ndata = json.loads(\'{"rows": [{"n": 1, "s": [1, 2.5, null, true]}]}\')\n'
    "print(json.dumps(data, indent=2, sort_keys=True))",
    "dataclass": "from dataclasses import dataclass, field\n"
    "@dataclass\nclass Order:\n    name: str\n"
    "    lines: list = field(default_factory=list)\n    total: float = 0.0\n"
    "sorted([Order('b', [1]), Order('a')], key=lambda o: o.name)",
    "dates_plain": "import datetime as dt, math, statistics\n"
    "days = [dt.date(2024, 1, 1) + dt.timedelta(days=n) for n in range(60)]\n"
    "weeks = {day.isocalendar()[1] for day in days}\n"
    "f'{days[-1]:%d %b %Y}', math.sqrt(2), statistics.stdev(range(9)), len(weeks)",
    "await": "import asyncio\nasync def one(n):\n    await asyncio.sleep(0)\n    return n * n\n"
    "async def all_of():\n    return await asyncio.gather(*(one(n) for n in range(5)))\n"
    "asyncio.run(all_of())",
    "key_error": _SALES + "sales['colour'].sum()",
    "value_error": "def parse(text):\n    return int(text)\nparse('twelve')",
}
