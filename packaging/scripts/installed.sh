#!/bin/sh
# Runs after installation and upgrade. Running services restart with the new program; tasks continue meanwhile.
set -e
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload
    systemctl try-restart cantle-server.service cantle-agent.service || true
fi
