"""Training mixtures, the synthetic world and evaluation sets as Lightning data modules."""

from typing import TYPE_CHECKING, Any

from data_modules.collate import Batch, Example

if TYPE_CHECKING:
    from data_modules.mixture_data import MixtureDataModule
    from data_modules.synthetic_data import SyntheticDataModule

__all__ = ["Batch", "Example", "MixtureDataModule", "SyntheticDataModule"]


def __getattr__(name: str) -> Any:
    """Imports a data module on first use: the pair's recipe reads the synthetic world without Lightning."""
    if name == "MixtureDataModule":
        from data_modules.mixture_data import MixtureDataModule

        return MixtureDataModule
    if name == "SyntheticDataModule":
        from data_modules.synthetic_data import SyntheticDataModule

        return SyntheticDataModule
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
