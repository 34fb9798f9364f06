//! debug
use fabric_compiler::compile;
use fabric_model::generate::*;
use fabric_model::*;
use std::collections::BTreeMap;
fn main() {
    let tree = FatTree::with_hosts(std::env::args().nth(1).unwrap().parse().unwrap()).generate().unwrap();
    let host = tree.end_nodes().next().unwrap().1.ports().next().unwrap().1.guid;
    let plan = compile(&tree, &Intents::new(host), &Decisions::default()).unwrap();
    let cut = without_links(tree.clone(), 1, 1).unwrap();
    for l in tree.links() {
        if cut.peer(l.a).is_none() {
            println!(
                "cut {} {} - {} {}",
                tree[l.a.node].description, l.a.port, tree[l.b.node].description, l.b.port
            );
        }
    }
    let after = compile(&cut, &Intents::new(host), plan.decisions()).unwrap();
    println!(
        "turn {:?} {:?} {:?}",
        plan.decisions().routing.turn,
        after.decisions().routing.turn,
        after.findings()
    );
    let name = |g| {
        tree[tree.by_guid(g).unwrap()]
            .description
            .split(|c: char| c.is_ascii_digit() || c == '-')
            .collect::<Vec<_>>()
            .join("")
    };
    let mut m: BTreeMap<(String, String), (usize, String)> = BTreeMap::new();
    for (o, n) in plan.switches().zip(after.switches()) {
        for (lid, g) in plan.lids() {
            if o.linear.exit(lid) != n.linear.exit(lid) {
                let e = tree.by_port_guid(g).unwrap();
                let e2 = m
                    .entry((
                        name(o.guid),
                        tree[e.node]
                            .description
                            .split(|c: char| c.is_ascii_digit() || c == '-')
                            .collect::<Vec<_>>()
                            .join(""),
                    ))
                    .or_default();
                e2.0 += 1;
                if e2.1.len() < 200 {
                    e2.1 += &format!(
                        " {}>{}",
                        tree[tree.by_guid(o.guid).unwrap()].description,
                        tree[e.node].description
                    )
                };
            }
        }
    }
    for (k, v) in m {
        println!("{k:?} {} {}", v.0, v.1);
    }
}
