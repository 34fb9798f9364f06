//! The two searches behind the rules about loops, for any network. The checks of tenant views use them, too.
//!
//! - [`Walk`] follows the packets to one destination from all switches: O(switches).
//! - [`cycles`] finds the cycles of a directed graph by Tarjan's strongly connected components (SIAM J. Comput. 1972)
//!   without recursion: O(nodes + edges).

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

/// Where packets to one destination go from a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WalkStep {
    /// To the switch with this index.
    Switch(usize),
    /// To their destination.
    Arrived,
    /// Nowhere, or to another port than their destination.
    Lost,
}

/// What happens to packets to one destination that are at a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Unknown,
    /// On the path that is being followed.
    Open,
    Arrives,
    Fails,
}

/// Follows packets to one destination after the other, with buffers that are allocated once.
#[derive(Debug)]
pub struct Walk {
    fates: Vec<Fate>,
    path: Vec<usize>,
}

impl Walk {
    /// For a network of this many switches.
    pub fn new(switches: usize) -> Self {
        Self { fates: vec![Fate::Unknown; switches], path: Vec::new() }
    }

    /// Follows the packets to one destination from every switch, visiting each switch once. Returns the loops, each as its
    /// switches in the order of the packets.
    #[inline]
    pub fn follow(&mut self, mut step: impl FnMut(usize) -> WalkStep) -> Vec<Vec<usize>> {
        let mut loops = Vec::new();
        self.fates.fill(Fate::Unknown);
        for start in 0..self.fates.len() {
            let mut here = start;
            self.path.clear();
            let fate = loop {
                match self.fates[here] {
                    Fate::Unknown => {}
                    Fate::Open => {
                        let first = self.path.iter().position(|switch| *switch == here).unwrap_or(0);
                        loops.push(self.path[first..].to_vec());
                        break Fate::Fails;
                    }
                    known => break known,
                }
                self.fates[here] = Fate::Open;
                self.path.push(here);
                match step(here) {
                    WalkStep::Switch(there) => here = there,
                    WalkStep::Arrived => break Fate::Arrives,
                    WalkStep::Lost => break Fate::Fails,
                }
            };
            for switch in &self.path {
                self.fates[*switch] = fate;
            }
        }
        loops
    }

    /// By switch: whether the packets that were followed last arrive from there.
    pub fn arrivals(&self) -> impl Iterator<Item = bool> + '_ {
        self.fates.iter().map(|fate| *fate == Fate::Arrives)
    }
}

/// A strongly connected component with a cycle.
#[derive(Debug, PartialEq, Eq)]
pub struct Cycle<N> {
    /// All nodes of the component, in ascending order.
    pub all: Vec<N>,
    /// A shortest cycle through the lowest node.
    pub shortest: Vec<N>,
}

/// One cycle for each strongly connected component that has any, ordered by the lowest node.
pub fn cycles<N: Copy + Ord + Hash>(nodes: &[N], after: impl Fn(&N) -> Vec<N>) -> Vec<Cycle<N>> {
    let indices: HashMap<N, usize> = nodes.iter().copied().zip(0..).collect();
    let edges: Vec<Vec<usize>> = (nodes.iter())
        .map(|node| after(node).iter().filter_map(|next| indices.get(next).copied()).collect())
        .collect();
    let mut cycles: Vec<Cycle<N>> = components(&edges)
        .into_iter()
        .filter(|all| all.len() > 1 || edges[all[0]].contains(&all[0]))
        .map(|mut all| {
            all.sort_unstable_by_key(|index| nodes[*index]);
            let shortest = shortest(&edges, &all).into_iter().map(|index| nodes[index]).collect();
            Cycle { all: all.into_iter().map(|index| nodes[index]).collect(), shortest }
        })
        .collect();
    cycles.sort_unstable_by(|a, b| a.all.cmp(&b.all));
    cycles
}

/// A topological order (Kahn's algorithm), or `None` if there is a cycle.
pub(crate) fn sorted<N: Copy + Eq + Hash>(nodes: &[N], after: impl Fn(&N) -> Vec<N>) -> Option<Vec<N>> {
    let indices: HashMap<N, usize> = nodes.iter().copied().zip(0..).collect();
    let edges = |node: &N| after(node).into_iter().filter_map(|next| indices.get(&next).copied());
    let mut before = vec![0_usize; nodes.len()];
    nodes.iter().flat_map(edges).for_each(|next| before[next] += 1);
    let mut open: VecDeque<usize> = (0..nodes.len()).filter(|index| before[*index] == 0).collect();
    let mut sorted = Vec::with_capacity(nodes.len());
    while let Some(index) = open.pop_front() {
        sorted.push(nodes[index]);
        for next in edges(&nodes[index]) {
            before[next] -= 1;
            if before[next] == 0 {
                open.push_back(next);
            }
        }
    }
    (sorted.len() == nodes.len()).then_some(sorted)
}

fn components(edges: &[Vec<usize>]) -> Vec<Vec<usize>> {
    const UNSEEN: usize = usize::MAX;
    let mut seen = vec![UNSEEN; edges.len()];
    let mut low = vec![0; edges.len()];
    let mut is_open = vec![false; edges.len()];
    let (mut stack, mut found, mut count) = (Vec::new(), Vec::new(), 0);
    for start in 0..edges.len() {
        if seen[start] != UNSEEN {
            continue;
        }
        let mut path: Vec<(usize, usize)> = vec![(start, 0)];
        while let Some((node, edge)) = path.last_mut() {
            let node = *node;
            if *edge == 0 {
                (seen[node], low[node], is_open[node]) = (count, count, true);
                count += 1;
                stack.push(node);
            }
            if let Some(next) = edges[node].get(*edge) {
                *edge += 1;
                if seen[*next] == UNSEEN {
                    path.push((*next, 0));
                } else if is_open[*next] {
                    low[node] = low[node].min(seen[*next]);
                }
                continue;
            }
            path.pop();
            if let Some((before, _)) = path.last() {
                low[*before] = low[*before].min(low[node]);
            }
            if low[node] == seen[node] {
                let first = stack.iter().rposition(|other| *other == node).unwrap_or(0);
                let component = stack.split_off(first);
                component.iter().for_each(|other| is_open[*other] = false);
                found.push(component);
            }
        }
    }
    found
}

/// A shortest cycle through the first node of a component, by breadth-first search.
fn shortest(edges: &[Vec<usize>], component: &[usize]) -> Vec<usize> {
    let first = component[0];
    let mut before: HashMap<usize, usize> = HashMap::new();
    let mut open = VecDeque::from([first]);
    while let Some(node) = open.pop_front() {
        for next in &edges[node] {
            if *next == first {
                let mut cycle = vec![node];
                while let Some(previous) = before.get(&cycle[cycle.len() - 1]) {
                    cycle.push(*previous);
                }
                cycle.reverse();
                return cycle;
            }
            if !before.contains_key(next) && component.contains(next) {
                before.insert(*next, node);
                open.push_back(*next);
            }
        }
    }
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_tells_arrivals_losses_and_loops_apart() {
        use WalkStep::{Arrived, Lost, Switch};
        // 0 → 1 → destination; 2 → 3 → 4 → 2 is a loop that 5 leads into; 6 leads nowhere.
        let steps = [Switch(1), Arrived, Switch(3), Switch(4), Switch(2), Switch(3), Lost];
        let mut walk = Walk::new(steps.len());
        assert_eq!(walk.follow(|switch| steps[switch]), [[2, 3, 4]]);
        assert!(walk.arrivals().eq([true, true, false, false, false, false, false]));
        assert!(walk.follow(|_| Arrived).is_empty(), "nothing is kept of the walk before");
        assert!(walk.arrivals().all(|arrives| arrives));
    }

    fn found(edges: &[(u8, u8)]) -> Vec<Vec<u8>> {
        let after = |node: &u8| edges.iter().filter(|(from, _)| from == node).map(|(_, to)| *to).collect();
        let cycles = cycles(&(0..8).collect::<Vec<u8>>(), after);
        cycles.into_iter().map(|cycle| cycle.shortest).collect()
    }

    #[test]
    fn acyclic_graphs_are_sorted() {
        let after = |node: &u8| if *node < 3 { vec![node + 1] } else { Vec::new() };
        assert_eq!(sorted(&[3, 1, 0, 2], after), Some(vec![0, 1, 2, 3]));
        assert_eq!(sorted(&[0, 1], |node| vec![1 - node]), None);
    }

    #[test]
    fn only_closed_paths_are_cycles() {
        assert_eq!(found(&[(0, 1), (1, 2), (0, 2), (3, 0), (2, 7)]), [[0; 0]; 0]);
        assert_eq!(found(&[(0, 1), (1, 2), (2, 3), (3, 1)]), [[1, 2, 3]]);
        assert_eq!(found(&[(2, 2), (2, 1)]), [[2]]);
        assert_eq!(
            found(&[(5, 4), (4, 5), (4, 0), (0, 1), (1, 2), (2, 0), (2, 1)]),
            [vec![0, 1, 2], vec![4, 5]]
        );
    }
}
