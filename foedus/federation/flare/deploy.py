"""Deployment files of a kit: a systemd unit, a container recipe, and a trial of a whole project in containers.

All of them run `foedus party run`, in the foreground, as a user without rights who owns the kit and nothing else.
"""

from pathlib import Path

from foedus.base.files import write_whole

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
#   chown -R {uid}:{uid} KIT && chmod -R go= KIT
#   docker run --read-only --tmpfs /tmp --cap-drop ALL -v $PWD/KIT:/kit -v /path/to/data:/data:ro{ports} foedus
# In local/foedus.toml of a site the data file is then /data/...
# BASE is any image with Python 3.11 or newer and its venv module; FOEDUS is what pip installs.
ARG BASE=python:3.11-slim
FROM $BASE
ARG FOEDUS=foedus[flare]
RUN useradd --uid {uid} --create-home --shell /usr/sbin/nologin {user} && python3 -m venv /opt/foedus \\
 && /opt/foedus/bin/pip install --no-cache-dir "$FOEDUS"
ENV PATH=/opt/foedus/bin:$PATH JAX_PLATFORMS=cpu FOEDUS_CACHE=off
USER {uid}:{uid}
HEALTHCHECK --interval=30s --timeout=20s --start-period=60s CMD ["foedus", "party", "health", "/kit"]
ENTRYPOINT ["foedus"]
CMD ["party", "run", "/kit"]
"""

COMPOSE = """\
# A trial of the whole project on one machine, in containers. Once the sites have their certificates:
#   mkdir -p work && chown -R {uid}:{uid} made work      the user of the containers
#   docker compose up --build --detach                    the server and the sites
#   docker compose --profile commands run --rm coordinator federation status --kit /{admin}
#   docker compose --profile commands run --rm coordinator federation submit experiment.toml --kit /{admin}
#   docker compose down
# A site's table is data/SITE/..., which its local/foedus.toml calls /data/...; work/ holds the experiment and its runs.
services:
{services}"""

SERVICE = """\
  {name}:
    image: foedus-trial
    read_only: true
    tmpfs: [/tmp]
    cap_drop: [ALL]
    security_opt: ["no-new-privileges:true"]
    volumes:
      - {kit}:{place}
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


def write_compose(folder: Path, server: Path, sites: list[Path], admin: Path) -> Path:
    """Write the file for a trial of a project in containers; the server is found under the name in its certificate."""
    build = f"    build: ./{server.relative_to(folder)}/deploy\n"
    alias = f"    networks:\n      default:\n        aliases: [{server.name}]\n"
    services = [_service("server", folder, server, build + alias)]
    for site in sites:
        more = f"      - ./data/{site.name}:/data:ro\n    depends_on: [server]\n"
        services.append(_service(site.name, folder, site, more))
    command = "      - ./work:/work\n    working_dir: /work\n    profiles: [commands]\n"
    services.append(_service("coordinator", folder, admin, command, f"/{admin.name}"))
    path = folder / "compose.yml"
    write_whole(path, COMPOSE.format(uid=UID, admin=admin.name, services="".join(services)).encode())
    return path


def _service(name: str, folder: Path, kit: Path, more: str, place: str = "/kit") -> str:
    return SERVICE.format(name=name, kit=f"./{kit.relative_to(folder)}", place=place, more=more)
