#!/bin/sh
# What NVIDIA's container runtime is where it is the default one: runc, and before a container is made it gets the GPUs.
set -e
case " $* " in
*" create "*) "$(dirname "$0")/give_gpus.py" "$@" ;;
esac
exec runc "$@"
