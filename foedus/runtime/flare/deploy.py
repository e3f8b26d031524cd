"""Deployment files of a kit: a systemd unit, a container recipe, and a trial of a whole project in containers.

All of them run `foedus party run`, in the foreground, as a user without rights who owns the kit and nothing else.
"""

from pathlib import Path

from foedus.files import write_whole

HOME = "/opt/foedus"  # where the unit expects kits and the environment
USER, UID = "foedus", 10001  # who runs a party

UNIT = """\
# systemd unit of {what}. As root, once:
#   useradd --system --home-dir {home} --shell /usr/sbin/nologin {user}
#   python3 -m venv {home}/venv && {home}/venv/bin/pip install 'foedus[flare]'
#   cp -r KIT {home}/{name} && chown -R {user}: {home}/{name} && chmod -R go= {home}/{name}
#   cp {home}/{name}/deploy/foedus.service /etc/systemd/system/foedus-{name}.service
#   systemctl daemon-reload && systemctl enable --now foedus-{name}
# Whoever runs the party needs to read the data file, not to write it. 'journalctl -u foedus-{name}' and out.log speak.

[Unit]
Description=foedus: {what}
After=network-online.target
Wants=network-online.target

[Service]
User={user}
Group={user}
WorkingDirectory={home}/{name}
ExecStart={home}/venv/bin/foedus party run {home}/{name}
ExecStop={home}/venv/bin/foedus party stop {home}/{name}
Restart=on-failure
RestartSec=10
TimeoutStopSec=30
UMask=0077
Environment=JAX_PLATFORMS=cpu FOEDUS_CACHE=/var/cache/foedus
CacheDirectory=foedus
NoNewPrivileges=yes
PrivateTmp=yes
PrivateDevices=yes
ProtectSystem=strict
ProtectHome=read-only
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectControlGroups=yes
RestrictSUIDSGID=yes
CapabilityBoundingSet=
ReadWritePaths={home}/{name}

[Install]
WantedBy=multi-user.target
"""

RECIPE = """\
# Container of {what}. Next to this folder's kit:
#   docker build -t foedus {folder}
#   chown -R {uid}:{uid} KIT
#   docker run --read-only --tmpfs /tmp --cap-drop ALL -v $PWD/KIT:/kit -v /path/to/data:/data:ro{ports} foedus
# In local/foedus.toml of a site the data file is then /data/...
FROM python:3.11-slim
ARG FOEDUS=foedus[flare]
RUN pip install --no-cache-dir "$FOEDUS" && useradd --uid {uid} --create-home --shell /usr/sbin/nologin {user}
ENV JAX_PLATFORMS=cpu FOEDUS_CACHE=off
USER {uid}:{uid}
ENTRYPOINT ["foedus"]
CMD ["party", "run", "/kit"]
"""

COMPOSE = """\
# A trial of the whole project on one machine, in containers: docker compose up --build
# First let the kits belong to the user of the containers:  chown -R {uid}:{uid} made
# Each site's table is data/SITE/..., which its local/foedus.toml calls /data/...
services:
{services}"""

SERVICE = """\
  {name}:
    build: {context}
    read_only: true
    tmpfs: [/tmp]
    cap_drop: [ALL]
    security_opt: ["no-new-privileges:true"]
    volumes:
      - {kit}:/kit
{more}"""


def write_deployment(kit: Path, what: str, ports: tuple[int, ...] = ()) -> None:
    """Write the unit and the recipe into a kit; `what` calls the party by its name, `ports` are those it listens on."""
    folder = kit / "deploy"
    folder.mkdir(exist_ok=True)
    unit = UNIT.format(what=what, name=kit.name, home=HOME, user=USER)
    mappings = "".join(f" -p {port}:{port}" for port in ports)
    recipe = RECIPE.format(what=what, folder="KIT/deploy", uid=UID, user=USER, ports=mappings)
    write_whole(folder / "foedus.service", unit.encode())
    write_whole(folder / "Dockerfile", recipe.encode())


def write_compose(folder: Path, server: Path, sites: list[Path]) -> Path:
    """Write the file for a trial of a project in containers; the server is found under the name in its certificate."""
    alias = f"    networks:\n      default:\n        aliases: [{server.name}]\n"
    services = [_service("server", folder, server, alias)]
    for site in sites:
        more = f"      - ./data/{site.name}:/data:ro\n    depends_on: [server]\n"
        services.append(_service(site.name, folder, site, more))
    path = folder / "compose.yml"
    write_whole(path, COMPOSE.format(uid=UID, services="".join(services)).encode())
    return path


def _service(name: str, folder: Path, kit: Path, more: str) -> str:
    place = f"./{kit.relative_to(folder)}"
    return SERVICE.format(name=name, context=f"{place}/deploy", kit=place, more=more)
