//! Profiles: what devices lack, where they are strict, and what they show. Every refusal has a control that is accepted.

use fabric_model::ibnetdiscover;
use fabric_sim::{
    AdapterDescription, BuiltInProfile, DeviceBehaviour, DeviceCapability, DeviceProfile, DropReason, Fabric,
};
use ib_wire::{
    AdaptiveRoutingInfo, Attribute, Capability, DataLanes, ExtendedSpeed, LinkSpeed, MKeyProtection,
    MlnxExtPortInfo, Mtu, PortInfo, PortState, ServiceLevel, SlToVl, Status, SwitchInfo,
};

use crate::world::{World, key};

fn strict() -> DeviceProfile {
    DeviceProfile::default()
}

/// The strict profile with another behaviour.
fn but(change: impl FnOnce(&mut DeviceBehaviour)) -> DeviceProfile {
    let mut profile = strict();
    change(&mut profile.behaviour);
    profile
}

/// Whether a message from `a` reaches `c`, through both switches.
fn crosses(world: &mut World) -> bool {
    world.passes("a", "c", World::message(3, 5, 0xffff))
}

/// The fabric with another rate for all cables.
fn at_rate(profile: DeviceProfile, rate: &str) -> World {
    let mut profile = profile;
    profile.links.rates = vec![rate.parse().unwrap()];
    let topology = profile.furnish(&ibnetdiscover::parse(crate::world::NET).unwrap()).unwrap();
    World::of(&ibnetdiscover::write(&topology), profile, 1)
}

#[test]
fn extended_speeds_are_shown_on_request_by_strict_devices_only() {
    let speeds = |profile: DeviceProfile, modifier: u32| {
        let data = at_rate(profile, "4xEDR").get("left", Attribute::PORT_INFO, modifier).unwrap();
        PortInfo::decode(&data).unwrap().extended_speed_active
    };
    let asked = 1 | PortInfo::EXTENDED_SPEEDS_KNOWN;
    assert_eq!(speeds(strict(), 1), ExtendedSpeed::default());
    assert_eq!(speeds(strict(), asked), ExtendedSpeed::EDR);
    assert_eq!(speeds(but(|it| it.extended_speeds_on_request = false), 1), ExtendedSpeed::EDR);
}

#[test]
fn the_size_of_a_live_link_changes_at_forgiving_devices_only() {
    let shrink = |profile: DeviceProfile| {
        let mut world = World::configured_with(profile, 1);
        world
            .try_change_port_info("left", 5, |info| info.neighbor_mtu = Mtu::B1024)
            .map(|info| info.neighbor_mtu)
    };
    assert_eq!(shrink(strict()), Err(Status::INVALID_FIELD));
    assert_eq!(shrink(but(|it| it.resize_below_armed = false)), Ok(Mtu::B1024));
}

#[test]
fn strict_devices_refuse_to_become_active_twice() {
    let activate = |profile: DeviceProfile| {
        let mut world = World::configured_with(profile, 1);
        world.try_change_port_info("left", 5, |info| info.state = PortState::Active).map(|_| ())
    };
    assert_eq!(activate(strict()), Err(Status::INVALID_FIELD));
    assert_eq!(activate(but(|it| it.active_twice_is_refused = false)), Ok(()));
}

#[test]
fn data_activate_an_armed_port() {
    for (profile, state) in
        [(strict(), PortState::Active), (but(|it| it.data_activate_armed = false), PortState::Armed)]
    {
        let mut world = World::configured_with(profile, 1);
        world.change_port_info("right", 1, |info| info.state = PortState::Down);
        world.change_port_info("c", 1, |info| (info.state, info.hoq_life) = (PortState::Armed, 15));
        for step in [PortState::Armed, PortState::Active] {
            world.change_port_info("right", 1, |info| (info.state, info.hoq_life) = (step, 15));
        }
        assert_eq!(world.port_info("c", 1).state, PortState::Armed, "the control");
        assert!(crosses(&mut world));
        assert_eq!(world.port_info("c", 1).state, state);
    }
}

#[test]
fn outputs_without_lifetime_drop_data() {
    for (hoq_life, life_time, passes) in [(15, 15, true), (0, 15, false), (15, 0, false)] {
        let mut world = World::configured();
        assert!(crosses(&mut world), "the control");
        world.change_port_info("left", 5, |info| info.hoq_life = hoq_life);
        let info = SwitchInfo { life_time, ..world.switch_info("left") };
        world.set("left", Attribute::SWITCH_INFO, 0, info.encode()).unwrap();
        assert_eq!(crosses(&mut world), passes, "HOQLife {hoq_life}, LifeTimeValue {life_time}");
        let dropped = world.fabric.statistics().drops.get(&DropReason::Expired).copied();
        assert_eq!(dropped, (!passes).then_some(1));
    }
    let mut forgiving = World::configured_with(but(|it| it.zero_lifetimes_drop = false), 1);
    forgiving.change_port_info("left", 5, |info| info.hoq_life = 0);
    assert!(crosses(&mut forgiving));
}

#[test]
fn devices_without_management_keys_ignore_them() {
    for (profile, is_kept) in [(strict(), true), (but(|it| it.management_keys = false), false)] {
        let mut world = World::configured_with(profile, 1);
        world.change_port_info("left", 0, |info| {
            (info.m_key, info.m_key_protection) = (key(7), MKeyProtection::Closed);
        });
        assert_eq!(world.try_get("left", Attribute::NODE_INFO, 0, None).is_none(), is_kept);
    }
}

#[test]
fn forgiving_devices_take_packets_of_any_partition_and_level() {
    for (profile, passes) in [(strict(), false), (BuiltInProfile::Ibsim.profile(), true)] {
        let mut world = World::configured_with(profile, 1);
        let stray = World::message(3, 5, 0x8123);
        assert_eq!(world.passes("a", "c", stray), passes);
        let mut high = World::message(3, 5, 0xffff);
        high.sl = ServiceLevel::from_wire(12).unwrap();
        assert_eq!(world.passes("a", "c", high), passes, "lane 12 of 8");
        assert!(crosses(&mut world), "the control");
    }
}

#[test]
fn a_filter_that_a_switch_lacks_stays_off() {
    let filters = |info: &PortInfo| {
        [info.enforce_inbound, info.enforce_outbound, info.filter_raw_inbound, info.filter_raw_outbound]
    };
    for (lacking, expected) in [
        (None, [true; 4]),
        (Some(DeviceCapability::InboundEnforcement), [false, true, true, true]),
        (Some(DeviceCapability::OutboundEnforcement), [true, false, true, true]),
        (Some(DeviceCapability::InboundRawFilter), [true, true, false, true]),
        (Some(DeviceCapability::OutboundRawFilter), [true, true, true, false]),
        (Some(DeviceCapability::EnforcementTable), [false, false, true, true]),
    ] {
        let profile = lacking.map_or_else(strict, |lacking| strict().without(lacking));
        let mut world = World::configured_with(profile, 1);
        let switch = world.switch_info("left");
        let shown = [
            switch.inbound_enforcement,
            switch.outbound_enforcement,
            switch.filter_raw_inbound,
            switch.filter_raw_outbound,
        ];
        assert_eq!(shown, expected, "{lacking:?}");
        let answer = world.change_port_info("left", 1, |info| {
            (info.enforce_inbound, info.enforce_outbound) = (true, true);
            (info.filter_raw_inbound, info.filter_raw_outbound) = (true, true);
        });
        assert_eq!(filters(&answer), expected, "{lacking:?}");
        let has_table = lacking != Some(DeviceCapability::EnforcementTable);
        assert_eq!(world.get("left", Attribute::PKEY_TABLE, 1 << 16).is_ok(), has_table);
    }
}

#[test]
fn a_switch_without_inbound_enforcement_lets_strays_enter() {
    for (profile, passes) in
        [(strict(), false), (strict().without(DeviceCapability::InboundEnforcement), true)]
    {
        let mut world = World::configured_with(profile, 1);
        // The host forges a key that its own port holds and the switch port does not.
        let mut block = [0; 64];
        block[..4].copy_from_slice(&[0xff, 0xff, 0x81, 0x23]);
        for name in ["a", "c"] {
            world.set(name, Attribute::PKEY_TABLE, 0, block).unwrap();
        }
        world.change_port_info("left", 1, |info| info.enforce_inbound = true);
        assert_eq!(world.passes("a", "c", World::message(3, 5, 0x8123)), passes);
    }
}

#[test]
fn devices_without_sl_to_vl_refuse_it_and_use_lane_0() {
    for (lacking, node, other) in
        [(DeviceCapability::SwitchSlToVl, "left", "a"), (DeviceCapability::AdapterSlToVl, "a", "left")]
    {
        let mut world = World::configured_with(strict().without(lacking), 1);
        for (name, expected) in [(node, Err(Status::UNSUPPORTED_ATTRIBUTE)), (other, Ok(()))] {
            let modifier = if name == "left" { 0x0105 } else { 0 };
            assert_eq!(
                world.get(name, Attribute::SL_TO_VL, modifier).map(|_| ()),
                expected,
                "{lacking} {name}"
            );
            let set = world.set(name, Attribute::SL_TO_VL, modifier, [0; 64]);
            assert_eq!(set.map(|_| ()), expected, "{lacking} {name}");
            let capability = world.port_info(name, 0).capability;
            assert_eq!(capability.has(Capability::SL_MAPPING), expected.is_ok(), "{lacking} {name}");
        }
        let port = if node == "left" { world.port_number("left", 5) } else { world.port("a") };
        let lanes: SlToVl = world.fabric.lanes_of(ib_wire::PortNum::new(1).unwrap(), port);
        assert!(lanes.0.iter().all(|lane| lane.to_wire() == 0), "{lacking}");
    }
}

#[test]
fn lanes_tables_and_arbitration_have_the_sizes_of_their_kind() {
    let mut profile = strict();
    (profile.adapters.lanes, profile.switches.lanes) = (DataLanes::Four, DataLanes::Fifteen);
    (profile.adapters.arbitration_entries, profile.switches.arbitration_entries) = (0, 64);
    (profile.adapters.pkeys, profile.switches.enforced_pkeys) = (128, 32);
    let mut world = World::configured_with(profile, 1);
    let sizes = |info: &PortInfo| (info.vl_cap, info.vl_arb_low_cap, info.vl_arb_high_cap);
    assert_eq!(sizes(&world.port_info("a", 1)), (DataLanes::Four, 0, 0));
    assert_eq!(sizes(&world.port_info("left", 1)), (DataLanes::Fifteen, 64, 64));
    assert_eq!(sizes(&world.port_info("left", 0)), (DataLanes::Fifteen, 0, 0), "port 0 sends over no link");
    assert_eq!(world.get("a", Attribute::VL_ARBITRATION, 1 << 16), Err(Status::INVALID_FIELD));
    assert!(world.get("left", Attribute::VL_ARBITRATION, 1 << 16 | 1).is_ok());
    assert_eq!(world.switch_info("left").partition_enforcement_capacity, 32);
    assert!(world.get("a", Attribute::PKEY_TABLE, 3).is_ok());
    assert_eq!(world.get("left", Attribute::PKEY_TABLE, 1 << 16 | 1), Err(Status::INVALID_FIELD));
    let ibsim = World::configured_with(BuiltInProfile::Ibsim.profile(), 1).port_info("left", 0);
    assert_eq!(ibsim.vl_arb_low_cap, 8, "ibsim shows tables there, too");
}

#[test]
fn lifetimes_that_cannot_be_written_stay() {
    for (lacks, expected) in [(false, (9, 9)), (true, (7, 18))] {
        let kind = BuiltInProfile::ConnectX3SwitchX.profile();
        let profile = if lacks { kind.without(DeviceCapability::Lifetimes) } else { kind };
        let mut world = World::configured_with(profile, 1);
        let hoq_life = world.change_port_info("left", 5, |info| info.hoq_life = 9).hoq_life;
        let info = SwitchInfo { life_time: 9, ..world.switch_info("left") };
        world.set("left", Attribute::SWITCH_INFO, 0, info.encode()).unwrap();
        assert_eq!((hoq_life, world.switch_info("left").life_time), expected);
    }
}

#[test]
fn links_train_at_what_both_devices_and_the_cable_support() {
    let trained = |profile: DeviceProfile, rate: &str| {
        let mut world = at_rate(profile, rate);
        let data = world.get("a", Attribute::PORT_INFO, 1 | PortInfo::EXTENDED_SPEEDS_KNOWN);
        let data = data.or_else(|_| world.get("a", Attribute::PORT_INFO, 1)).unwrap();
        let info = PortInfo::decode(&data).unwrap();
        let vendor = world.get("a", Attribute::MLNX_EXT_PORT_INFO, 1);
        let is_fdr10 = vendor.map(|data| MlnxExtPortInfo::decode(&data).unwrap().link_speed_active == 1);
        (info.link_speed_active, info.extended_speed_active, is_fdr10)
    };
    let none = ExtendedSpeed::default();
    assert_eq!(trained(strict(), "4xHDR"), (LinkSpeed::QDR, ExtendedSpeed::HDR, Ok(false)));
    let fdr = BuiltInProfile::ConnectX3SwitchX.profile();
    assert_eq!(trained(fdr, "4xHDR"), (LinkSpeed::QDR, ExtendedSpeed::FDR, Ok(false)));
    assert_eq!(trained(strict(), "4xFDR10"), (LinkSpeed::QDR, none, Ok(true)));
    let plain = strict().without(DeviceCapability::ExtendedPortInfo);
    assert_eq!(trained(plain, "4xFDR10"), (LinkSpeed::QDR, none, Err(Status::UNSUPPORTED_ATTRIBUTE)));
    let old = strict().without(DeviceCapability::ExtendedSpeeds);
    assert_eq!(trained(old.clone(), "4xHDR"), (LinkSpeed::QDR, none, Ok(false)));
    assert_eq!(trained(old, "4xFDR10"), (LinkSpeed::QDR, none, Ok(false)));
    let mut mixed = strict();
    mixed.adapters.speed_max = fabric_model::Speed::Ddr;
    assert_eq!(trained(mixed, "4xHDR"), (LinkSpeed::DDR, none, Ok(false)));
}

#[test]
fn adaptive_routing_is_shown_and_ends_with_a_reboot() {
    let mut profile = BuiltInProfile::ConnectX6Quantum.profile();
    let shown = |world: &mut World, node: &str| {
        let data = world.get(node, Attribute::ADAPTIVE_ROUTING_INFO, 0)?;
        Ok(AdaptiveRoutingInfo::decode(&data).unwrap().enabled)
    };
    assert_eq!(shown(&mut World::configured_with(profile.clone(), 1), "left"), Ok(false));
    profile.inherited.adaptive_routing = true;
    let mut world = World::configured_with(profile, 1);
    assert_eq!(shown(&mut world, "left"), Ok(true));
    assert_eq!(shown(&mut world, "a"), Err(Status::UNSUPPORTED_ATTRIBUTE), "adapters route nothing");
    let left = world.fabric.find_device("left").unwrap();
    world.fabric.reboot(world.now, left);
    assert_eq!(shown(&mut world, "left"), Ok(false));
    assert_eq!(shown(&mut World::configured(), "left"), Err(Status::UNSUPPORTED_ATTRIBUTE));
}

#[test]
fn an_earlier_manager_may_have_left_an_lmc() {
    let mut profile = strict();
    profile.inherited.lmc = 2;
    let mut world = World::with(profile, 1);
    assert_eq!(world.port_info("a", 1).lmc.to_wire(), 2);
    assert_eq!(world.port_info("left", 0).lmc.to_wire(), 2);
    assert_eq!(world.port_info("left", 1).lmc.to_wire(), 0, "external ports have no LID");
}

#[test]
fn descriptions_are_those_of_the_field() {
    let described = |profile: &DeviceProfile| {
        let topology = ibnetdiscover::parse(crate::world::NET).unwrap();
        let fabric = Fabric::new(topology, profile.clone(), 1).unwrap();
        fabric.device_ids().map(|device| fabric.description_of(device).text()).collect::<Vec<_>>()
    };
    assert_eq!(described(&strict()), ["left", "right", "a", "b", "c", "d"]);
    let expected =
        ["MF0;left:SX6036/U1", "MF0;right:SX6036/U1", "a mlx4_0", "b mlx4_0", "c mlx4_0", "d mlx4_0"];
    assert_eq!(described(&BuiltInProfile::ConnectX3SwitchX.profile()), expected);
    let quantum = "Quantum Mellanox Technologies";
    let expected = [quantum, quantum, "a mlx5_0", "b mlx5_0", "c mlx5_0", "d mlx5_0"];
    assert_eq!(described(&BuiltInProfile::ConnectX6Quantum.profile()), expected);
    let expected = ["left", "right", "a HCA-1", "a HCA-2", "c HCA-1", "c HCA-2"];
    assert_eq!(described(&BuiltInProfile::OldAndOdd.profile()), expected);
    let mut firmware = strict();
    firmware.adapters.description = AdapterDescription::Firmware;
    assert_eq!(described(&firmware)[2], "MT4123 ConnectX6   Mellanox Technologies");
}
