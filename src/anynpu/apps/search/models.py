"""The models of an index: what turns pictures, questions and documents into vectors, and which space they are of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from anynpu.artifact import Artifact
from anynpu.tasks.embed import ImageTower, TextTower
from anynpu.tasks.images import Picture
from anynpu.tasks.space import Space, joint
from anynpu.tensors import Array
from anynpu.vectors.base import Precision, VectorSpace

Pictures = Sequence[tuple[str, Picture]]


@dataclass(frozen=True)
class PictureModel:
    """Pictures to vectors."""

    space: VectorSpace
    embed: Callable[[Pictures], Array]
    artifact: str = ""
    """Where it was opened from, so that a later command can open it again."""


@dataclass(frozen=True)
class TextModel:
    """Texts to vectors."""

    space: VectorSpace
    embed: Callable[[Sequence[str]], Array]
    artifact: str = ""


@dataclass(frozen=True)
class Models:
    """What an index works with: `pictures` for pictures, `documents` for texts, and `questions` for words that look for
    pictures, which must be of the pictures' space."""

    pictures: PictureModel | None = None
    questions: TextModel | None = None
    documents: TextModel | None = None

    def require_joint(self, pictures: VectorSpace) -> None:
        """Raises if questions in words mean nothing among the vectors of pictures."""
        if self.questions is None:
            return
        words = self.questions.space
        joint(
            Space(pictures.name, pictures.width, pictures.normalized),
            pictures.width,
            Space(words.name, words.width, words.normalized),
            words.width,
        )


def picture_model(artifact: Artifact, tower: ImageTower) -> PictureModel:
    """Returns an opened image tower as a model of an index."""
    return PictureModel(space_of(artifact, tower.space, tower.width), tower.embed, str(artifact.path))


def text_model(artifact: Artifact, tower: TextTower) -> TextModel:
    """Returns an opened text tower as a model of an index."""
    return TextModel(space_of(artifact, tower.space, tower.width), tower.embed, str(artifact.path))


def space_of(artifact: Artifact, space: Space, width: int) -> VectorSpace:
    """Returns the space of the vectors that an artifact makes."""
    manifest = artifact.manifest
    fingerprint = manifest.fingerprint or manifest.digest
    return VectorSpace(space.name, fingerprint, width, space.normalized, precision_of(artifact))


def precision_of(artifact: Artifact) -> Precision:
    """Returns what a model calculates in: a compiled artifact whose chain quantised it is int8, the others float."""
    manifest = artifact.manifest
    quantised = "quantisation" in manifest.details
    quantised |= any(spec.quantization for spec in (*manifest.inputs, *manifest.outputs))
    return "int8" if quantised else "float"
