"""References between documents: pools, products, templates, policies. Checked once all files are read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from belay.engine.documents import (
    BelayDocument,
    FaultPolicy,
    FaultTable,
    KVLink,
    NodePool,
    NotificationPolicy,
    Product,
    SafetyBudget,
    VNPULayout,
    VNPUTemplates,
)
from belay.engine.documents.notifications import check_receivers
from belay.engine.documents.problems import Path, Problem
from belay.engine.load.limits import check_limits
from belay.engine.load.links import check_links
from belay.engine.model.codes.findings import FindingCode
from belay.engine.model.vnpu import cores, unfit
from belay.engine.model.wording import counted

IMPLICIT_POOL = "default"


@dataclass(frozen=True)
class KnownNames:
    """All names that documents may refer to. Names of broken documents count, so that one error stays one error."""

    products: Mapping[str, Product]
    templates: Mapping[str, VNPUTemplates]
    tables: Mapping[str, FaultTable]
    pools: Mapping[str, NodePool]
    broken: frozenset[tuple[str, str]]
    layouts: tuple[VNPULayout, ...] = ()
    schedulers: tuple[str, ...] = ("belay",)

    def knows(self, kind: str, name: str, among: Mapping[str, object]) -> bool:
        """Whether a document of that kind and name is declared, usable or broken."""
        return name in among or (kind, name) in self.broken

    @cached_property
    def families(self) -> Mapping[str, VNPUTemplates]:
        """Templates by chip family."""
        return {templates.spec.family: templates for templates in self.templates.values()}

    @cached_property
    def policies(self) -> frozenset[str]:
        """Every known ``huawei.com/schedule_policy``."""
        return frozenset(policy for product in self.products.values() for policy in product.spec.schedule_policies)

    @cached_property
    def codes(self) -> frozenset[str]:
        """Every fault code of all tables, in upper case."""
        return frozenset(code for table in self.tables.values() for code in table.code_levels)


def check_references(document: BelayDocument, names: KnownNames) -> Iterator[Problem]:
    """Problems for the unknown names in a document."""
    match document:
        case NodePool():
            yield from _product(document.spec.product, ("spec", "product"), names)
        case Product():
            family = document.spec.vnpu.family
            if family and family not in names.families:
                yield _unknown(("spec", "vnpu", "family"), "chip family", family, names.families)
        case VNPULayout():
            yield from _check_layout(document, names)
        case FaultPolicy():
            yield from _check_policy(document, names)
        case SafetyBudget():
            yield from check_limits(document)
        case KVLink():
            yield from check_links(document)
        case NotificationPolicy():
            yield from check_receivers(document)
            for index, rule in enumerate(document.spec.rules):
                for place, pool in enumerate(rule.pools):
                    yield from _pool(pool, ("spec", "rules", index, "pools", place), names)
        case _:
            return


def check_schedule_policy(policy: str, names: KnownNames) -> str | None:
    """The warning for an unknown schedule policy; the job then falls back to its ``accelerator-type``."""
    if policy in names.policies:
        return None
    return _unknown((), "schedule policy", policy, names.policies).message


def _unknown(path: Path, what: str, name: str, known: Iterable[str]) -> Problem:
    listed = sorted(known)
    shown = ", ".join(listed[:40]) + (", …" if len(listed) > 40 else "")
    return Problem(path, f"unknown {what} {name!r:.80}: known are {shown or 'none'}", code=FindingCode.UNKNOWN_NAME)


def _product(name: str | None, path: Path, names: KnownNames) -> Iterator[Problem]:
    if name is not None and not names.knows("Product", name, names.products):
        yield _unknown(path, "product", name, names.products)


def _pool(name: str, path: Path, names: KnownNames) -> Iterator[Problem]:
    if name != IMPLICIT_POOL and not names.knows("NodePool", name, names.pools):
        yield _unknown(path, "node pool", name, [*names.pools, IMPLICIT_POOL])


def _check_layout(layout: VNPULayout, names: KnownNames) -> Iterator[Problem]:
    spec = layout.spec
    pool = None
    if spec.pool is not None:
        yield from _pool(spec.pool, ("spec", "pool"), names)
        pool = names.pools.get(spec.pool)
    product = names.products.get(pool.spec.product) if pool and pool.spec.product else None
    if product is not None:
        if not getattr(product.spec.vnpu, spec.mode):
            yield Problem(("spec", "mode"), f"{product.spec.title} does not support {spec.mode} vNPUs")
        for index, row in enumerate(spec.chips):
            if row.chips[-1] >= product.spec.chips_per_node:
                most = product.spec.chips_per_node
                text = f"chip {row.chips[-1]} does not exist: {product.name} has at most {counted(most, 'chip')}"
                yield Problem(("spec", "chips", index, "chips"), text)
    families = _families(product, names)
    known = {name for templates in families for name in templates.by_name}
    for index, row in enumerate(spec.chips):
        unknown = [(place, name) for place, name in enumerate(row.templates) if name not in known]
        for place, name in unknown:
            yield _unknown(("spec", "chips", index, "templates", place), "vNPU template", name, known)
        if row.templates and not unknown and not any(_fits(row.templates, templates) for templates in families):
            text = f"{', '.join(row.templates)} do not fit on one chip together: {_why_unfit(row.templates, families)}"
            yield Problem(("spec", "chips", index, "templates"), text)


def _families(product: Product | None, names: KnownNames) -> list[VNPUTemplates]:
    """Candidate families of a layout: its product's, those of the product's chips, else all."""
    if product is None:
        return list(names.families.values())
    family = product.spec.vnpu.family
    if family is not None:
        return [names.families[family]] if family in names.families else []
    keys = {*product.spec.chip_names, *product.spec.vnpu.server_types}
    return [
        templates
        for templates in names.families.values()
        if any(keys.intersection((*row.chip_names, *row.server_types)) for row in templates.spec.chips)
    ]


def _why_unfit(wanted: tuple[str, ...], families: list[VNPUTemplates]) -> str:
    """What is missing on a chip, and the templates that fit in place of the last one that is too much."""
    family = next((f for f in families if all(name in f.by_name for name in wanted)), None)
    if family is None:
        return "they belong to chips of different families"
    row = family.spec.chips[0]
    lacking = unfit(row.totals, [family.by_name[name].size(row.aicore) for name in wanted]) or ""
    for place in range(len(wanted), 0, -1):
        rest = (*wanted[: place - 1], *wanted[place:])
        others = [t.name for t in family.spec.templates if _fits((*rest, t.name), family)]
        others.sort(key=lambda name: -cores(name))
        if others:
            return f"{lacking}; in place of {wanted[place - 1]} fits {' or '.join(others[:4])}"
    return f"{lacking}; fewer of them fit"


def _fits(wanted: tuple[str, ...], templates: VNPUTemplates) -> bool:
    """Whether templates fit together on some chip of the family."""
    chosen = [templates.by_name[name] for name in wanted if name in templates.by_name]
    if len(chosen) != len(wanted):
        return False
    return any(
        unfit(row.totals, [template.size(row.aicore) for template in chosen]) is None for row in templates.spec.chips
    )


def _check_policy(policy: FaultPolicy, names: KnownNames) -> Iterator[Problem]:
    scope = policy.spec.scope
    for index, pool in enumerate(scope.pools):
        yield from _pool(pool, ("spec", "scope", "pools", index), names)
    for index, product in enumerate(scope.products):
        yield from _product(product, ("spec", "scope", "products", index), names)
    for code in policy.spec.levels:
        yield from _code(code, ("spec", "levels", code), names, at_key=True)
    for part, windows in (
        ("frequency", [rule.codes for rule in policy.spec.frequency]),
        ("duration", [rule.codes for rule in policy.spec.duration]),
    ):
        for index, codes in enumerate(windows):
            for place, code in enumerate(codes):
                yield from _code(code, ("spec", part, index, "codes", place), names)


def _code(code: str, path: Path, names: KnownNames, *, at_key: bool = False) -> Iterator[Problem]:
    """Warn of a code that no table lists; it may be new, so it is not an error."""
    if code.upper() not in names.codes:
        yield Problem(
            path, f"no fault table lists code {code}: is it spelt right?", "warning", at_key, FindingCode.UNKNOWN_NAME
        )
