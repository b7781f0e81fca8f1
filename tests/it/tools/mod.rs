//! The agent tools: their schemas and descriptions, and the scenarios of the specification's seeds.

mod scenarios;
mod table;
