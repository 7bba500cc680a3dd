"""Targets: a target encodes y for the loss and decodes scores; `base` states the interface."""

from .base import Classes, ClassTarget, Target
from .classes import Binary, EachClass
from .label_set import LabelSet
from .ordinal import MissingLabelWarning, Ordinal
from .real import Real
from .tasks import Tasks

__all__ = [
    "Binary",
    "ClassTarget",
    "Classes",
    "EachClass",
    "LabelSet",
    "MissingLabelWarning",
    "Ordinal",
    "Real",
    "Target",
    "Tasks",
]
