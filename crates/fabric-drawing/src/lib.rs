//! Drawings as text: [`diagram`] draws the topology of a fabric as SVG or DOT, [`chart`] draws measured series as SVG.
//!
//! Both are pure functions of their arguments: the same input gives the same bytes.

pub mod chart;
pub mod diagram;
mod page;
