"""Checks docker-compose.yml for scripts/lint: all that it names exists. No container runs."""

import re
from pathlib import Path

import yaml

compose = yaml.safe_load(Path("docker-compose.yml").read_text())
services = compose["services"]
image = {path.name: path.read_text() for path in Path("packaging/docker").iterdir() if path.suffix != ".deb"}
program, settings, install = (Path(path).read_text() for path in ("crates/xdb/src/main.rs", "src/guc.rs", "docs/install.md"))
data_directory = re.search(r"^ENV PGDATA=(\S+)", image["Dockerfile"], re.M).group(1)
# The official image of PostgreSQL documents the last three. libpq has those that begin with PG.
variables = set(re.findall(r"XDB_\w+", image["init-xdb.sh"])) | {"POSTGRES_USER", "POSTGRES_DB", "POSTGRES_PASSWORD"}
wrong = []


def check(service: str, what: str, is_right: object) -> None:
    if not is_right:
        wrong.append(f"docker-compose.yml: {service}: {what}")


for name, service in services.items():
    words = [word for part in service.get("command", []) for word in str(part).split()]
    if service["image"].startswith("xdb:"):
        check(name, f"docs/install.md does not build {service['image']}", f"docker build -t {service['image']} packaging/docker" in install)
    check(name, "build has no Dockerfile", (Path(service.get("build", "packaging/docker")) / "Dockerfile").is_file())
    for variable in service.get("environment", {}):
        check(name, f"{variable} is unknown", variable in variables or re.fullmatch("PG(HOST|DATABASE|USER|PASSWORD)", variable))
    for needed in service.get("depends_on", {}):
        check(name, f"{needed} is no service with a healthcheck", services.get(needed, {}).get("healthcheck", {}).get("test"))
    for volume in service.get("volumes", []):
        source, target = volume.split(":")[:2]
        if source.startswith("."):
            check(name, f"{source} is missing", Path(source).exists())
        else:
            check(name, f"{source} is no volume", source in compose["volumes"])
            check(name, f"{target} does not have {data_directory}", data_directory.startswith(target))
    for port in service.get("ports", []):
        check(name, f"port {port} is not in docs/install.md", f"-p {port} " in install)
    test = service.get("healthcheck", {}).get("test", ["CMD", "xdb-healthy"])
    check(name, f"{test[1]} is not in the image", test[1] in image)
    for setting, value in re.findall(r"(xdb\.\w+)=(\S+)", " ".join(words)):
        check(name, f"{setting} is no setting", f'"{setting}"' in settings)
        check(name, f"{value} is no service", setting != "xdb.allowed_worker_hosts" or value in services)
    for host, port in re.findall(r"http://(\w+):(\d+)", " ".join(words)):
        check(name, f"nothing listens on {host}:{port}", host in services and f"--port {port}" in " ".join(words))
    for module in re.findall(r"(\w+):worker\b", " ".join(words)):
        check(name, f"examples/python has no {module}.py", Path(f"examples/python/{module}.py").is_file())
    for option in (word[2:].replace("-", "_") for word in words if words[0] == "xdb" and word.startswith("--")):
        check(name, f"--{option} is no option of xdb", re.search(rf"\b{option}: bool", program))

print("\n".join(wrong))
raise SystemExit(bool(wrong))
