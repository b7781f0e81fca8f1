//! The store: its contract, opening and migrating, and what happens when the file is damaged.

mod conformance;
mod damage;
mod open;
