"""Methods with settings under which what a check changes is read: label texts, features next to texts, files."""

from conformance.small import small_and_short
from labelwise.registry import method_class, method_names
from labelwise.testing.subject import Subject

STEPS = 3
VARIANTS = {
    "linear_tree with texts": ("linear_tree", {}),
    "linear_tree with label texts": ("linear_tree", {"label_text_weight": 0.5}),
    "linear_tree with label documents": ("linear_tree", {"label_documents": "texts"}),
    "linear_tree with vectors": ("linear_tree", {"vector_scale": 0.5}),
    "linear_tree with relevance": ("linear_tree", {"relevance": True}),
    "hybrid_linear with label texts": ("hybrid_linear", {"label_text_weight": 0.5}),
    "mach with texts": ("mach", {}),
    "ensemble with label documents": ("ensemble", {"members": [{"method": "linear_tree", "label_documents": "texts"}]}),
    "ensemble with vectors": ("ensemble", {"members": [{"method": "linear_tree", "vector_scale": 0.5}]}),
}
"""By what it is, a method and parameters; all of them read texts."""


def subject(name, **more):
    """A method as small as tests need it; names of `VARIANTS` too."""
    method, given = VARIANTS.get(name, (name, {}))
    params = {**small_and_short(method, steps=STEPS), **given, **more}
    inputs = ["texts"] if name in VARIANTS else None
    return Subject(lambda: method_class(method)(**params), inputs, vectors=name.endswith("with vectors"))


def names():
    """All methods, then the variants."""
    return [*method_names(), *VARIANTS]
