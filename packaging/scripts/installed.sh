#!/bin/sh
# Runs after installation and upgrade. Running services restart with the new program; tasks continue meanwhile.
set -e
# Tasks run as this user (agent.toml). It stays when the package is removed: it may own files elsewhere.
if ! getent passwd cantle-task >/dev/null; then
    useradd --system --user-group --no-create-home --home-dir /var/lib/cantle-task --shell /usr/sbin/nologin cantle-task
fi
[ -d /var/lib/cantle-task ] || install -d -m 0700 -o cantle-task -g "$(id -g cantle-task)" /var/lib/cantle-task
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload
    systemctl try-restart cantle-server.service cantle-agent.service || true
fi
