#!/bin/sh
# Makes ./configure from configure.ac; needs autoconf, automake, libtool.
set -e
cd "$(dirname "$0")"
exec autoreconf --install --force
