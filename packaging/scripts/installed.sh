#!/bin/sh
# Runs after installation and upgrade. Running services restart with the new program; tasks continue meanwhile.
set -e
# Tasks run as this user (agent.toml). It stays when the package is removed: it may own files.
if ! getent passwd cantle-task >/dev/null; then
    useradd --system --user-group --create-home --home-dir /var/lib/cantle-task --shell /usr/sbin/nologin cantle-task
    chmod 0700 /var/lib/cantle-task
fi
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload
    systemctl try-restart cantle-server.service cantle-agent.service || true
fi
