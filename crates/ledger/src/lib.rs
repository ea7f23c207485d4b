//! cantle: ledger
