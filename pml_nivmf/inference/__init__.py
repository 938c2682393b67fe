"""Classes that training never had: enrol their images, identify queries with a probability, or refuse them."""

from .gallery import Answer, ClassGallery, Evidence
from .shape import WithinClassShape

__all__ = ["Answer", "ClassGallery", "Evidence", "WithinClassShape"]
