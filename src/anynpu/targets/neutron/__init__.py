"""NXP Neutron NPUs through the neutron-converter of the eIQ Neutron SDK."""

from anynpu.targets.neutron.target import Neutron

__all__ = ["Neutron"]
