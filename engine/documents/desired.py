"""The desired state: what a repository declares, read and checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Generic, TypeVar

import msgspec

from belay.engine.documents.diagnosis_rules import DiagnosisRule, DiagnosisRules
from belay.engine.documents.fault_policy import FaultPolicy
from belay.engine.documents.fault_tables import FaultTable
from belay.engine.documents.kinds import Isolation, KVLink, NodePool, SafetyBudget, VNPULayout
from belay.engine.documents.notifications import NotificationPolicy
from belay.engine.documents.products import Product
from belay.engine.documents.scheduling import SchedulingSettings, SchedulingSettingsSpec
from belay.engine.documents.vnpu import VNPUTemplates
from belay.engine.documents.workload_kinds import WorkloadKind
from belay.engine.model.cluster import Observed
from belay.engine.model.diagnostics import ObjectKey, Origin
from belay.engine.model.labels import CHIP_NAME, SERVER_TYPE
from belay.engine.model.last_changes import LastChange, Place
from belay.engine.model.workload_kinds import WorkloadTable, table_of

Document_co = TypeVar("Document_co", covariant=True)

SHIPPED: Final = "shipped:"
"""Prefix of files of shipped policies in origins, to distinguish them from the repository's files."""
CLUSTER: Final = "cluster object "
"""Prefix of origins of documents that are objects in the cluster and not from Git."""
_MAX_LABEL_SETS: Final = 4096
"""Most label sets whose product is cached; a cluster has a handful."""


class Manifest(msgspec.Struct, frozen=True):
    """One user manifest, kept as written; ``digest`` is the SHA-256 of its canonical JSON, in hex.

    ``key.namespace`` is filled in (``default``) for namespaced kinds even where the body leaves it out.
    """

    key: ObjectKey
    body: dict[str, Any]
    origin: Origin
    digest: str


@dataclass(frozen=True, slots=True)
class Declared(Generic[Document_co]):
    """A checked document and its origin."""

    document: Document_co
    origin: Origin


@dataclass(frozen=True)
class Desired:
    """Everything declared at one revision.

    Tuples are sorted by key or name; ``products``, ``fault_tables``, ``templates`` and ``diagnosis`` are keyed by name.
    ``budget_broken``: a SafetyBudget cannot be read and has no known good version, so nothing disruptive may be done.
    ``has_git``: False when the documents come from a cluster file only.
    ``held``: documents that are broken or in force in an older version, as ``Kind/namespace/name``: not to be pruned.
    ``incomplete``: a file can neither be read nor replaced by an older version, so nothing may be pruned.
    ``confirmed``: digests of waiting deletions that commits confirm (``Belay-Confirm``).
    ``earlier``: manifests, as last declared, of objects whose deletion waits.
    ``last_changes``: the commits that last changed the files, as far as known.
    ``every_role``: Belay takes every role regardless of settings and live components; only for plans without an engine.
    """

    revision: str = ""
    manifests: tuple[Manifest, ...] = ()
    pools: tuple[Declared[NodePool], ...] = ()
    layouts: tuple[Declared[VNPULayout], ...] = ()
    fault_policies: tuple[Declared[FaultPolicy], ...] = ()
    isolations: tuple[Declared[Isolation], ...] = ()
    budgets: tuple[Declared[SafetyBudget], ...] = ()
    scheduling: tuple[Declared[SchedulingSettings], ...] = ()
    links: tuple[Declared[KVLink], ...] = ()
    notifications: tuple[Declared[NotificationPolicy], ...] = ()
    products: Mapping[str, Declared[Product]] = field(default_factory=dict)
    fault_tables: Mapping[str, Declared[FaultTable]] = field(default_factory=dict)
    templates: Mapping[str, Declared[VNPUTemplates]] = field(default_factory=dict)
    diagnosis: Mapping[str, Declared[DiagnosisRules]] = field(default_factory=dict)
    workloads: Mapping[str, Declared[WorkloadKind]] = field(default_factory=dict)
    budget_broken: bool = False
    has_git: bool = True
    held: tuple[str, ...] = ()
    incomplete: bool = False
    confirmed: tuple[str, ...] = ()
    earlier: tuple[Manifest, ...] = ()
    last_changes: Mapping[str, LastChange] = field(default_factory=dict)
    every_role: bool = False

    @cached_property
    def manifest_index(self) -> Mapping[ObjectKey, Manifest]:
        """The user manifests by key."""
        return {manifest.key: manifest for manifest in self.manifests}

    @cached_property
    def pool_index(self) -> Mapping[str, Declared[NodePool]]:
        """Node pools by name; the implicit pool ``default`` is not among them."""
        return {pool.document.name: pool for pool in self.pools}

    @cached_property
    def settings(self) -> SchedulingSettingsSpec:
        """The scheduling settings in force."""
        found = self.settings_in_force
        return found.document.spec if found is not None else SchedulingSettingsSpec()

    @cached_property
    def settings_in_force(self) -> Declared[SchedulingSettings] | None:
        """The document of the settings in force: the repository's first one by name, else the shipped one."""
        ranked = sorted(self.scheduling, key=lambda item: (item.origin.file.startswith(SHIPPED), item.document.name))
        return ranked[0] if ranked else None

    @cached_property
    def origins(self) -> tuple[Origin, ...]:
        """Where every document and manifest stands, shipped ones included."""
        groups: tuple[Iterable[Declared[Any]], ...] = (
            self.pools, self.layouts, self.fault_policies, self.isolations, self.budgets, self.scheduling, self.links,
            self.notifications,
            self.products.values(), self.fault_tables.values(), self.templates.values(), self.diagnosis.values(),
            self.workloads.values(),
        )  # fmt: skip
        declared = [item.origin for group in groups for item in group]
        return (*(manifest.origin for manifest in self.manifests), *declared)

    def place_of(self, origin: Origin) -> Place:
        """Where a document stands and who changed it last; the revision in force where that commit is not known."""
        if origin.file.startswith(CLUSTER):
            return Place(origin.file)
        if origin.file.startswith(SHIPPED):
            return Place(origin.file, origin.line)
        change = self.last_changes.get(origin.file)
        if change is None:
            return Place(origin.file, origin.line, self.revision)
        return Place(origin.file, origin.line, change.commit, change.author, change.why)

    def pools_of(self, labels: Mapping[str, str]) -> tuple[Declared[NodePool], ...]:
        """Every pool whose selector matches a node's labels; more than one is an error of the declaration."""
        return tuple(pool for pool in self.pools if pool.document.spec.selector.matches(labels))

    def may_prune(self, key: ObjectKey) -> bool:
        """Whether an object that is no longer declared may be deleted.

        Not while its document is broken rather than gone, nor while some file is unreadable and might declare it.
        """
        return self.has_git and not self.incomplete and str(key) not in self._held

    @cached_property
    def _held(self) -> frozenset[str]:
        return frozenset(self.held)

    def product_of(self, labels: Mapping[str, str]) -> Product | None:
        """The product of a node by its labels: the largest label set that fits, earlier sets first, then by name."""
        known = tuple([labels.get(key) for key in self._product_labels])
        if known not in self._product_by_labels:
            if len(self._product_by_labels) >= _MAX_LABEL_SETS:
                self._product_by_labels.clear()
            self._product_by_labels[known] = self._best_product(labels)
        return self._product_by_labels[known]

    @cached_property
    def _product_labels(self) -> tuple[str, ...]:
        products = [declared.document.spec.node_labels for declared in self.products.values()]
        return tuple(sorted({key for sets in products for wanted in sets for key in wanted}))

    @cached_property
    def _product_by_labels(self) -> dict[tuple[str | None, ...], Product | None]:
        return {}

    def _best_product(self, labels: Mapping[str, str]) -> Product | None:
        ranked = [
            (rank, name, declared.document)
            for name, declared in self.products.items()
            if (rank := declared.document.label_rank(labels)) is not None
        ]
        return min(ranked, key=lambda item: item[:2])[2] if ranked else None

    def products_with_chip(self, chip_name: str) -> tuple[str, ...]:
        """Names of the products that have this model of chip, sorted; drivers spell a model in several ways."""
        return self._products_by_chip.get(_plain(chip_name), ())

    @cached_property
    def _products_by_chip(self) -> Mapping[str, tuple[str, ...]]:
        found: dict[str, list[str]] = {}
        for name in sorted(self.products):
            for chip in dict.fromkeys(map(_plain, self.products[name].document.spec.chip_names)):
                found.setdefault(chip, []).append(name)
        return {chip: tuple(names) for chip, names in found.items()}

    @cached_property
    def _by_policy(self) -> Mapping[tuple[str, str], Product]:
        table: dict[tuple[str, str], Product] = {}
        for name in sorted(self.products):
            product = self.products[name].document
            for policy in product.spec.schedule_policies:
                table.setdefault((product.spec.resource, policy), product)
                table.setdefault(("*", policy), product)
        return table

    def product_for_policy(self, policy: str, resource: str) -> Product | None:
        """The product that ``huawei.com/schedule_policy`` names: with this resource first, then with any."""
        return self._by_policy.get((resource, policy)) or self._by_policy.get(("*", policy))

    @cached_property
    def _by_accelerator_type(self) -> Mapping[str, Product]:
        table: dict[str, Product] = {}
        for name in sorted(self.products):
            for accelerator in self.products[name].document.spec.accelerator_types:
                table.setdefault(accelerator, self.products[name].document)
        return table

    def product_for_accelerator_type(self, accelerator_type: str) -> Product | None:
        """The product that a job's ``accelerator-type`` selector names."""
        return self._by_accelerator_type.get(accelerator_type)

    @cached_property
    def known_policies(self) -> frozenset[str]:
        """Every ``huawei.com/schedule_policy`` that a product knows."""
        return frozenset(policy for _, policy in self._by_policy)

    def policies_for(self, resource: str) -> tuple[str, ...]:
        """Every ``huawei.com/schedule_policy`` of the products that offer a resource, sorted."""
        return tuple(sorted(policy for offered, policy in self._by_policy if offered == resource))

    @cached_property
    def known_accelerator_types(self) -> tuple[str, ...]:
        """Every ``accelerator-type`` that a product has, sorted."""
        return tuple(sorted(self._by_accelerator_type))

    @cached_property
    def tables(self) -> Mapping[str, FaultTable]:
        """Fault tables by plane: the repository's own before the shipped one, then the first by name."""
        ranked = sorted(
            self.fault_tables.values(),
            key=lambda item: (item.origin.file.startswith(SHIPPED), item.document.name),
        )
        table: dict[str, FaultTable] = {}
        for declared in ranked:
            table.setdefault(declared.document.spec.plane, declared.document)
        return table

    @cached_property
    def diagnosis_rules(self) -> Mapping[str, DiagnosisRule]:
        """Rules about logs by code: the repository's before the shipped ones, then the first document by name."""
        ranked = sorted(
            self.diagnosis.values(), key=lambda item: (item.origin.file.startswith(SHIPPED), item.document.name)
        )
        found: dict[str, DiagnosisRule] = {}
        for declared in ranked:
            for rule in declared.document.spec.rules:
                found.setdefault(rule.code, rule)
        return found

    @cached_property
    def workload_table(self) -> WorkloadTable:
        """The rows of kinds of workloads: of two for one kind the repository's own counts, then the first by name."""
        ranked = sorted(
            self.workloads.values(), key=lambda item: (item.origin.file.startswith(SHIPPED), item.document.name)
        )
        return table_of((declared.document.row() for declared in ranked), self.settings.kueue_quota == "kueue")

    def reading(self, observed: Observed) -> Observed:
        """A snapshot in which owners of pods are read by the declared table."""
        if observed.workloads is self.workload_table:
            return observed
        return msgspec.structs.replace(observed, workloads=self.workload_table)

    @cached_property
    def own_diagnosis_rules(self) -> tuple[DiagnosisRule, ...]:
        """The rules in force that the repository declares, by code: agents know the shipped ones."""
        own = (item for item in self.diagnosis.values() if not item.origin.file.startswith(SHIPPED))
        codes = {rule.code for declared in own for rule in declared.document.spec.rules}
        return tuple(self.diagnosis_rules[code] for code in sorted(codes))

    @cached_property
    def families(self) -> Mapping[str, VNPUTemplates]:
        """vNPU templates by chip family, such as ``Ascend310P``."""
        return {self.templates[name].document.spec.family: self.templates[name].document for name in self.templates}

    @cached_property
    def template_of_suffix(self) -> Mapping[str, str]:
        """vNPU templates by the end of their resource's name, such as ``4c.3cpu``."""
        rows = [row for templates in self.families.values() for row in templates.spec.templates]
        return {row.suffix: row.name for row in rows}

    @cached_property
    def _families_of_chips(self) -> Mapping[str, VNPUTemplates]:
        return {
            key: templates
            for templates in self.families.values()
            for row in templates.spec.chips
            for key in (*row.chip_names, *row.server_types)
        }

    def templates_for(self, product: Product | None, labels: Mapping[str, str]) -> VNPUTemplates | None:
        """The vNPU templates of a node: by its server type, else its chip's name, else its product's family."""
        known = self._families_of_chips
        found = known.get(labels.get(SERVER_TYPE, "")) or known.get(labels.get(CHIP_NAME, ""))
        if found is None and product is not None and product.spec.vnpu.family:
            found = self.families.get(product.spec.vnpu.family)
        return found


def _plain(chip_name: str) -> str:
    """A chip's model in one spelling: ``Ascend910-9382`` and ``910_9382`` are the same."""
    return chip_name.replace(" ", "").removeprefix("Ascend").replace("-", "_")
