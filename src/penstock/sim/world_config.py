"""The configuration of a simulated cluster."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.broker.config import BrokerConfig
from penstock.ports import Slicing
from penstock.sim.executor import DiskSpeed
from penstock.sim.network.link import NetworkConfig
from penstock.sim.store import StoreConfig


@dataclass(frozen=True, slots=True)
class WorldConfig:
    brokers: int = 3
    kafka: tuple[tuple[str, str], ...] = ()
    """Kafka settings that every broker gets."""
    broker: BrokerConfig = field(default_factory=BrokerConfig)
    """The other settings that all brokers share. Each broker gets its own id, address, directory
    and rack."""
    racks: int = 0
    network: NetworkConfig = field(default_factory=NetworkConfig)
    store: StoreConfig = field(default_factory=StoreConfig)
    disk: DiskSpeed = field(default_factory=DiskSpeed)
    slicing: Slicing = Slicing()  # noqa: RUF009 - Slicing is frozen
    """How brokers divide long work into slices."""
    keys: str = ""
    """What the provider of the keys of encrypted topics is like: see `key_service`. Empty if there
    is none."""
    capacity_bytes: int = 1 << 40
    restart_pause_s: tuple[float, float] = (0.5, 2.0)
    """How long the supervisor waits before it restarts a broker that exited by itself."""
    gc_every_steps: int = 50_000
    steps_per_instant_max: int = 100_000
    virtual_s_max: float = 3600.0
    keep_trace: bool = False
    keep_steps: bool = False
