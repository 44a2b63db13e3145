"""The files that run taskgate elsewhere, read by the tools that they are for: compose, kustomize, systemd."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from gateway import config
from tests.deploy import DEPLOY, ROOT, VERSION, output
from tests.forked import ran
from tests.launch import Gateways, listening, logged, port_of
from tests.tools import tool

KUBERNETES: Final = ("1.29", "1.33", "1.37")
EXAMPLES: Final = ("ingress.yaml", "secret.yaml")
UNITS: Final = ("taskgate.service", "taskgate@.service")


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    text = output(tool("docker-compose", "docker-compose"), "-f", DEPLOY / "compose.yaml", "config")
    found: dict[str, Any] = yaml.safe_load(text)["services"]
    return found


def test_compose_has_a_gateway_a_server_prometheus_and_grafana(compose: dict[str, Any]) -> None:
    assert set(compose) == {"gateway", "legacy", "prometheus", "grafana"}
    for service in compose.values():
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:"), "on loopback alone"
        for volume in service.get("volumes", ()):
            source, _, access = volume.split(":")
            assert Path(source).is_file(), source
            assert access == "ro"


def test_compose_runs_this_version_with_flags_that_it_has(compose: dict[str, Any]) -> None:
    gateway = compose["gateway"]
    assert gateway["image"] == f"taskgate:{VERSION}"
    assert gateway["build"]["args"] == {"VERSION": VERSION}
    ended = ran("--check", *gateway["command"])
    assert ended.returncode == 0, ended.stderr


def test_the_server_of_compose_is_the_one_that_the_tests_run(compose: dict[str, Any]) -> None:
    tested = json.loads((ROOT / "tests/node/package.json").read_text())["dependencies"]
    name = "@modelcontextprotocol/server-everything"
    assert f"{name}@{tested[name]}" in compose["legacy"]["command"]


def test_the_changelog_begins_with_this_version() -> None:
    first = re.search(r"(?m)^## (\S+)", (ROOT / "CHANGELOG.md").read_text())
    assert first is not None and first[1] == VERSION


def test_images_are_pinned(compose: dict[str, Any]) -> None:
    images = [service["image"] for service in compose.values()]
    images += re.findall(r"(?m)^ARG BASE=(\S+)", (DEPLOY / "Dockerfile").read_text())
    assert len(images) == 5
    for image in images:
        assert re.search(r":v?\d+\.\d+", image), image


@pytest.fixture(scope="module")
def manifests() -> str:
    """What `kubectl apply -k` applies, and the examples that are applied by hand."""
    made = output(tool("kubectl", "kubernetes-client"), "kustomize", DEPLOY / "kubernetes")
    return "---\n".join([made, *((DEPLOY / "kubernetes" / name).read_text() for name in EXAMPLES)])


@pytest.fixture(scope="module")
def parts(manifests: str) -> dict[str, list[Any]]:
    """The manifests by kind."""
    found: dict[str, list[Any]] = {}
    for part in yaml.safe_load_all(manifests):
        found.setdefault(part["kind"], []).append(part)
    return found


def container_of(parts: dict[str, list[Any]]) -> Any:
    [deployment] = parts["Deployment"]
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    return container


@pytest.mark.parametrize("version", KUBERNETES)
def test_kubernetes_takes_every_manifest(manifests: str, version: str, tmp_path: Path) -> None:
    file = tmp_path / "manifests.yaml"
    file.write_text(manifests)
    validate = Path(sys.executable).parent / "kubernetes-validate"
    said = output(validate, "--strict", "--kubernetes-version", version, file)
    assert "find schema" not in said


def test_pods_run_this_version_with_a_configuration_that_is_valid(parts: dict[str, list[Any]]) -> None:
    container = container_of(parts)
    assert container["image"].endswith(f"/taskgate:{VERSION}")
    configured = config.parse(parts["ConfigMap"][0]["data"]["config.yaml"], "config.yaml")
    assert configured.admin is not None
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"http": configured.listen.port, "admin": configured.admin.listen.port}
    limits = configured.limits
    assert limits.shutdown_delay > 0
    grace_s = parts["Deployment"][0]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert grace_s > limits.shutdown_delay + limits.drain_timeout


def test_selectors_name_the_pods(parts: dict[str, list[Any]]) -> None:
    monitor = yaml.safe_load((DEPLOY / "kubernetes/servicemonitor.yaml").read_text())
    labels = parts["Deployment"][0]["spec"]["template"]["metadata"]["labels"]
    assert parts["PodDisruptionBudget"][0]["spec"]["selector"]["matchLabels"] == labels
    assert parts["NetworkPolicy"][0]["spec"]["podSelector"]["matchLabels"] == labels
    assert all(service["spec"]["selector"] == labels for service in parts["Service"])
    monitored = monitor["spec"]["selector"]["matchLabels"].items()
    (admin,) = (service for service in parts["Service"] if monitored <= service["metadata"]["labels"].items())
    assert [port["name"] for port in admin["spec"]["ports"]] == ["admin"]


def test_the_configuration_that_the_secret_shows_takes_its_values(
    parts: dict[str, list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    [secret] = parts["Secret"]
    assert container_of(parts)["envFrom"] == [{"secretRef": {"name": secret["metadata"]["name"], "optional": True}}]
    for name, value in secret["stringData"].items():
        monkeypatch.setenv(name, value)
    (shown,) = re.findall(r"`(store: .*)`", (DEPLOY / "kubernetes/secret.yaml").read_text())
    configured = config.parse(f"{parts['ConfigMap'][0]['data']['config.yaml']}\n{shown}\n", "config.yaml")
    assert configured.store is not None
    assert secret["stringData"]["STORE_PASSWORD"] in configured.store.url


def test_the_ingress_leads_all_paths_of_its_host_to_the_port_of_clients(parts: dict[str, list[Any]]) -> None:
    [ingress] = parts["Ingress"]
    (rule,), (tls,) = ingress["spec"]["rules"], ingress["spec"]["tls"]
    (path,) = rule["http"]["paths"]
    assert (path["path"], path["pathType"], tls["hosts"]) == ("/", "Prefix", [rule["host"]])
    to = path["backend"]["service"]
    (service,) = (part for part in parts["Service"] if part["metadata"]["name"] == to["name"])
    (port,) = (port for port in service["spec"]["ports"] if port["name"] == to["port"]["name"])
    assert port["targetPort"] == "http" in {each["name"] for each in container_of(parts)["ports"]}


@pytest.mark.parametrize("name", UNITS)
def test_systemd_finds_no_fault_in_the_unit(name: str, tmp_path: Path) -> None:
    command = Path(sys.executable).parent / "taskgate"
    unit = tmp_path / name.replace("@.", "@research.")
    unit.write_text((DEPLOY / name).read_text().replace("/opt/taskgate/bin/taskgate", str(command)))
    output(tool("systemd-analyze", "systemd"), "verify", "--man=no", "--recursive-errors=no", unit)


def commands(key: str, names: dict[str, str]) -> list[str]:
    unit = (DEPLOY / "taskgate.service").read_text()
    for given, name in names.items():
        unit = unit.replace(given, name)
    return re.findall(rf"(?m)^{key}=(.*)$", unit)


async def test_a_reload_of_the_unit_takes_over_what_can_be_and_fails_on_the_rest(tmp_path: Path) -> None:
    """The unit's own commands, without systemd, which the machine does not run."""
    tool("kill", "procps")
    with listening() as upstream, Gateways(tmp_path).process(port_of(upstream)) as gateway:
        assert gateway.file is not None
        names = {
            "/opt/taskgate/bin/": f"{Path(sys.executable).parent}/",
            "/etc/taskgate/config.yaml": str(gateway.file),
            "%t/taskgate": str(tmp_path),
            "$MAINPID": str(gateway.running.popen.pid),
        }
        (kept,) = commands("ExecStartPost", names)
        assert shell(kept)
        started = json.loads(gateway.file.read_text())

        gateway.reconfigure({**started, "listen": "127.0.0.1:1"})
        check, *rest = commands("ExecReload", names)
        assert not shell(check), "a reload cannot change this"

        gateway.reconfigure({**started, "index": {"page_size": 7}})
        assert all(map(shell, [check, *rest]))
        await logged(gateway, "reloaded")
        assert json.loads((tmp_path / "config.yaml").read_text())["index"] == {"page_size": 7}


def shell(command: str) -> bool:
    return subprocess.run(command.split(), capture_output=True, timeout=60).returncode == 0


def test_the_template_unit_differs_in_names_alone() -> None:
    one, many = ((DEPLOY / name).read_text().partition("[Unit]")[2] for name in UNITS)
    renamed = {
        "Description=taskgate,": "Description=taskgate %i,",
        "/etc/taskgate/config.yaml": "/etc/taskgate/%i.yaml",
        "/etc/taskgate/tls.key": "/etc/taskgate/%i.key",
        "taskgate.service": "taskgate@%i.service",
        "RuntimeDirectory=taskgate": "RuntimeDirectory=taskgate@%i",
        "%t/taskgate/": "%t/taskgate@%i/",
        "PYTHONUNBUFFERED=1": "PYTHONUNBUFFERED=1 TASKGATE_INSTANCE=%i",
    }
    for of_one, of_many in renamed.items():
        assert of_one in one
        one = one.replace(of_one, of_many)
    assert one == many
