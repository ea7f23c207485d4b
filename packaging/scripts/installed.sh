#!/bin/sh
# After installation and upgrade. Services that run start again with the new program; tasks go on meanwhile.
set -e
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload
    systemctl try-restart cantle-server.service cantle-agent.service || true
fi
