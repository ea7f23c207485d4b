"""The software bill of materials (CycloneDX 1.6) of the program: every crate that is linked into it."""

import datetime
import uuid

from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import LicenseExpression
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

PROGRAM = "cantle-cli"


def linked(metadata):
    """The packages that normal dependencies lead to from the program."""
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    packages = {package["id"]: package for package in metadata["packages"]}
    waiting = [identity for identity, package in packages.items() if package["name"] == PROGRAM]
    found = {}
    while waiting:
        identity = waiting.pop()
        if identity in found:
            continue
        depends = [
            dependency["pkg"]
            for dependency in nodes[identity]["deps"]
            if any(kind["kind"] is None for kind in dependency["dep_kinds"])
        ]
        found[identity] = depends
        waiting.extend(depends)
    return found, packages


def write_sbom(path, metadata, date):
    found, packages = linked(metadata)
    components = {}
    for identity in found:
        package = packages[identity]
        # A license field of before SPDX separates by a slash.
        license_text = (package["license"] or "").replace("/", " OR ")
        components[identity] = Component(
            name=package["name"],
            version=package["version"],
            type=ComponentType.APPLICATION if package["name"] == PROGRAM else ComponentType.LIBRARY,
            purl=PackageURL("cargo", name=package["name"], version=package["version"]),
            bom_ref=f"{package['name']}@{package['version']}",
            licenses=[LicenseExpression(license_text)] if license_text else [],
        )
    program = next(component for component in components.values() if component.name == PROGRAM)
    # The same crates give the same document.
    serial = uuid.uuid5(uuid.NAMESPACE_URL, "\n".join(sorted(str(each.purl) for each in components.values())))
    bom = Bom(serial_number=serial, components=[each for each in components.values() if each is not program])
    bom.metadata.component = program
    bom.metadata.timestamp = datetime.datetime.fromtimestamp(date, datetime.UTC)
    for identity, depends in found.items():
        bom.register_dependency(components[identity], [components[each] for each in depends])
    path.write_text(JsonV1Dot6(bom).output_as_string(indent=2) + "\n")
