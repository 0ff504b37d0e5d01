"""Page and plot of `linear_scale.py`."""


def page(rows, given):
    return ""


def chart(rows):
    from labelwise.report.drawing import Chart
    return Chart('a','a','a',lambda f: f.add_subplot(1,1,1))
