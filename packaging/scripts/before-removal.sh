#!/bin/sh
# Runs before removal. An upgrade keeps the services.
set -e
case "${1:-}" in
upgrade | 1) exit 0 ;;
esac
if [ -d /run/systemd/system ]; then
    systemctl disable --now cantle-agent.service cantle-server.service || true
fi
