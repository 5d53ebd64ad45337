"""Names of control groups: the container, pod or unit that a group belongs to.

A group's path has the ID of a container, the UID of a pod, or the name of a unit. What people call
containers and pods is in files of kubelet and of the container runtimes: nobody is asked for it.

- kubelet: the directories /var/log/pods/NAMESPACE_POD_UID, and links in /var/log/containers
  (pkg/kubelet/kuberuntime, ``buildPodLogsDirectory`` and ``legacyLogSymlink``).
- Docker: /var/lib/docker/containers/ID/config.v2.json.
- podman and CRI-O: /var/lib/containers/storage/overlay-containers/containers.json.
- containerd: the annotations of the OCI runtime's config.json under /run/containerd.
"""

import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

# Where the machine's files are also seen from a container that has the machine's PIDs.
_MACHINE: Final = "/proc/1/root"
# The ID by which Docker, containerd, CRI-O and podman name control groups (cgroups(7)).
_CONTAINER: Final = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
# A group of a container, or what some runtimes have in it.
_CONTAINER_GROUP: Final = re.compile(r"(?:^|[/-])(?P<id>[0-9a-f]{64})(?:\.scope)?(?:/container)?$")
# A pod's UID; systemd's names have underscores in it.
_POD: Final = re.compile(r"[/-]pod(?P<id>[0-9a-f]{8}[-_][-_0-9a-f]{27})(?![-_0-9a-f])")
_UNIT: Final = re.compile(r"/(?P<id>[^/]+\.(?:service|scope|socket|slice))$")
_POD_LOGS: Final = re.compile(r"(?P<namespace>[^_]+)_(?P<pod>[^_]+)_(?P<uid>[^_]+)")
_LOG_LINK: Final = re.compile(
    r"(?P<pod>[^_]+)_(?P<namespace>[^_]+)_(?P<container>.+)-(?P<id>[0-9a-f]{64})\.log"
)
# What kubelet calls containers of Docker and CRI-O.
_KUBELET_NAME: Final = re.compile(
    r"k8s_(?P<container>[^_]+)_(?P<pod>[^_]+)_(?P<namespace>[^_]+)_[^_]+_\d+"
)
_ANNOTATIONS: Final = {
    "io.kubernetes.cri.sandbox-namespace": "namespace",
    "io.kubernetes.cri.sandbox-name": "pod",
    "io.kubernetes.cri.container-name": "container",
}
_LEAST_DIGITS: Final = 4  # Digits of a container's ID that have to be given
_SHOWN_DIGITS: Final = 12
_LARGEST_BYTES: Final = 16 << 20


class GroupName(NamedTuple):
    """What a control group belongs to. Each is empty if there is none, or if it is unknown."""

    namespace: str = ""
    pod: str = ""
    container: str = ""
    unit: str = ""
    container_id: str = ""
    pod_uid: str = ""

    @property
    def owner(self) -> str:
        """NAMESPACE/POD[/CONTAINER], or the container's name."""
        return "/".join(filter(None, (self.namespace, self.pod, self.container)))

    def labels(self) -> dict[str, str]:
        """Returns all but the IDs."""
        return dict(list(self._asdict().items())[:4])

    def of_group(self, path: str) -> str:
        """Returns the short name, for people, of a group with this path."""
        if _CONTAINER_GROUP.search(path):
            return f"container {self.owner or self.container_id[:_SHOWN_DIGITS]}"
        if path.rstrip("/").endswith((self.pod_uid, f"{self.pod_uid.replace('-', '_')}.slice")):
            return f"pod {self.owner or self.pod_uid}" if self.pod_uid else self.unit or path
        return self.unit or path

    def is_called(self, path: str, wanted: str) -> bool:
        """Returns whether people may call a group with this path so."""
        if wanted.startswith("/"):
            return path == wanted
        if _CONTAINER_GROUP.search(path):
            is_id = len(wanted) >= _LEAST_DIGITS and self.container_id.startswith(wanted)
            return is_id or (bool(self.owner) and wanted in (self.owner, self.container))
        return wanted in (path.rpartition("/")[2], self.of_group(path).removeprefix("pod "))


class GroupNames:
    """Finds names of control groups, and remembers them. For one thread at a time."""

    def __init__(self, machine: Path | None = None) -> None:
        self._machine = machine or Path(_MACHINE if os.access(_MACHINE, os.X_OK) else "/")
        self._known: dict[str, GroupName] = {}
        self._listed: dict[str, dict[str, str]] | None = None  # See `_read_lists`

    def forget(self) -> None:
        self._known.clear()
        self._listed = None

    def name(self, path: str) -> GroupName:
        """Returns what a group belongs to. ``path``: its path, or the text of /proc/PID/cgroup."""
        if path not in self._known:
            self._known[path] = self._find(path)
        return self._known[path]

    def _find(self, path: str) -> GroupName:
        containers, pods = _CONTAINER.findall(path), _POD.findall(path)
        unit = _UNIT.search(path)
        is_unit = unit and not _CONTAINER.search(unit["id"]) and not _POD.search(unit["id"])
        found = GroupName(
            unit=unit["id"] if unit and is_unit else "",
            container_id=containers[-1] if containers else "",
            pod_uid=pods[-1].replace("_", "-") if pods else "",
        )
        if not containers and not pods:
            return found
        if self._listed is None:
            self._listed = self._read_lists()
        names = self._listed.get(found.container_id, {})
        if containers and not names:
            names = self._of_runtime(found.container_id)
        return found._replace(**(names or self._listed.get(found.pod_uid, {})))

    def _matches(self, directory: str, pattern: re.Pattern[str]) -> Iterator[re.Match[str]]:
        with suppress(OSError):
            for entry in (self._machine / directory).iterdir():
                if match := pattern.fullmatch(entry.name):
                    yield match

    def _read_lists(self) -> dict[str, dict[str, str]]:
        """Reads the files that name many: fields of ``GroupName`` by container ID or pod UID."""
        found = {}
        stored = self._json("var/lib/containers/storage/overlay-containers/containers.json")
        for one in stored if isinstance(stored, list) else []:
            names = one.get("names") if isinstance(one, dict) else None
            if isinstance(names, list):
                found[str(one.get("id"))] = next(filter(None, map(_called, names)), {})
        for directory, pattern, key in (
            ("var/log/pods", _POD_LOGS, "uid"), ("var/log/containers", _LOG_LINK, "id"),
        ):  # fmt: skip
            for match in self._matches(directory, pattern):
                names = match.groupdict()
                found[names.pop(key)] = names
        return found

    def _of_runtime(self, container_id: str) -> dict[str, str]:
        """Reads the files that Docker and containerd have for one container."""
        docker = self._json(f"var/lib/docker/containers/{container_id}/config.v2.json")
        if isinstance(docker, dict) and (names := _called(docker.get("Name"))):
            return names
        tasks = "run/containerd/io.containerd.runtime.v2.task"
        for namespace in self._matches(tasks, re.compile("(?s).+")):
            config = self._json(f"{tasks}/{namespace[0]}/{container_id}/config.json")
            annotations = config.get("annotations") if isinstance(config, dict) else None
            if isinstance(annotations, dict):
                found = {key: annotations.get(name) for name, key in _ANNOTATIONS.items()}
                return {key: value for key, value in found.items() if isinstance(value, str)}
        return {}

    def _json(self, path: str) -> Any:
        try:
            with open(self._machine / path, "rb") as file:
                return json.loads(file.read(_LARGEST_BYTES))
        except (OSError, ValueError, RecursionError):
            return None


def _called(name: object) -> dict[str, str]:
    """Returns what a runtime's name of a container says; empty if it is none."""
    text = name.strip("/") if isinstance(name, str) else ""
    called = _KUBELET_NAME.fullmatch(text)
    if called is not None:
        return called.groupdict()
    return {"container": text} if text else {}
