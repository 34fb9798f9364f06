//! Stock tools and stock opensm take a view for a network of their own.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod served;
mod world;

use served::{Served, eventually};
use tenant_view::Rule;
use world::World;

#[test]
fn stock_tools_agree_about_a_view_that_nobody_manages() {
    let world = World::tree(32, 8);
    let served = Served::new(world.view(&[0, 1, 5, 9]));
    let found = served.tool("vm-0", "ibnetdiscover", &[]);
    assert_eq!(found.matches("\nCa\t").count(), 4, "{found}");
    println!("{found}");
    println!("{}", served.tool("vm-2", "sminfo", &[]));
    println!("{}", served.tool("vm-2", "saquery", &["PR", "--slid", "1", "--dlid", "3"]));
}

#[test]
fn opensm_takes_a_view_over_and_the_default_returns_when_it_ends() {
    let world = World::tree(32, 8);
    let served = Served::new(world.view(&[0, 1, 5, 9]));
    let manager = served.opensm("vm-1", &[]);
    eventually("opensm rules", || {
        served.with(|view, _| view.rule()) == Rule::Tenant { node: "vm-1".to_owned() }
    });
    manager.wait_for("SUBNET UP");
    println!("{}", manager.log());
    println!("{}", served.tool("vm-2", "sminfo", &[]));
    drop(manager);
    eventually("the default returns", || served.with(|view, _| view.rule()) == Rule::Default);
    println!("{}", served.tool("vm-2", "sminfo", &[]));
}
