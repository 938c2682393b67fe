"""Classes that training never had: enrol their images, identify queries with a probability, or refuse them."""

from .classes import WithinClassShape
from .gallery import Answer, ClassGallery, Evidence

__all__ = ["Answer", "ClassGallery", "Evidence", "WithinClassShape"]
