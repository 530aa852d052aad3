"""Charts and tables as data: what the code has drawn, read by the program that ran it."""

from belljar import Sandbox
from belljar.results.chart import Bar

CODE = """
import matplotlib.pyplot as plt
import pandas as pd

sales = pd.DataFrame({"month": ["Jan", "Feb", "Mar"], "north": [3, 5, 4], "south": [2, 2, 6]})
display(sales)
sales.plot(x="month", kind="bar", title="Sales", ylabel="Revenue (EUR)")
plt.show()
"""


def main() -> None:
    with Sandbox() as sandbox:
        table, figure = sandbox.run_code(CODE).raise_for_outcome().results

    print(f"the table came as {', '.join(table.formats())}:\n{table.text}")
    chart = figure.chart
    assert chart is not None
    assert figure.png is not None
    print(f"the figure is a {chart.type} chart, {chart.title!r}, in {chart.y_unit}")
    for bar in chart.elements:
        assert isinstance(bar, Bar)
        print(f"  {bar.label} {bar.group}: {bar.value}")
    print(f"and a picture of {len(figure.png) // 1024} KiB")


if __name__ == "__main__":
    main()
