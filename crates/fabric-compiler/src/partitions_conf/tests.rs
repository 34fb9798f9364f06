use proptest::prelude::*;

use super::*;

fn guid(raw: u64) -> MemberSelector {
    MemberSelector::Port(Guid::from_wire(raw).unwrap())
}

fn member(who: MemberSelector, role: Role) -> Member {
    Member { selector: who, role, placement: PkeyPlacement::Anywhere }
}

fn number(raw: u16) -> Option<PartitionNumber> {
    PartitionNumber::from_wire(raw)
}

fn one(text: &str) -> PartitionIntent {
    let rules = parse(text).unwrap_or_else(|error| panic!("{text:?}: {error}"));
    <[PartitionIntent; 1]>::try_from(rules).expect("one rule")[0].clone()
}

/// Line, column and token of the error.
fn refused(text: &str) -> (u32, u32, String) {
    let error = parse(text).expect_err(text);
    (error.line, error.column, error.found)
}

#[test]
fn every_kind_of_member_is_read() {
    let rule = one(
        "Blue=0x101 : ALL, ALL_CAS=full, ALL_SWITCHES=limited, ALL_ROUTERS=both, SELF=full, 0x2c9, 17=full;",
    );
    assert_eq!((rule.name.as_str(), rule.number, rule.ipoib), ("Blue", number(0x101), None));
    let expected = [
        member(MemberSelector::All, Role::Limited),
        member(MemberSelector::AllAdapters, Role::Full),
        member(MemberSelector::AllSwitches, Role::Limited),
        member(MemberSelector::AllRouters, Role::Both),
        member(MemberSelector::Manager, Role::Full),
        member(guid(0x2c9), Role::Limited),
        member(guid(17), Role::Full),
    ];
    assert_eq!(rule.members, expected);
}

#[test]
fn titles_may_lack_the_name_or_the_key() {
    let title = |text| {
        let rule = one(text);
        (rule.name, rule.number)
    };
    assert_eq!(title("Default : ALL;"), ("Default".to_owned(), number(0x7fff)));
    assert_eq!(title("Default=0xffff:;"), ("Default".to_owned(), number(0x7fff)));
    assert_eq!(title("=0x300 : ;"), (String::new(), number(0x300)));
    assert_eq!(title("0x300 : ;"), (String::new(), number(0x300)));
    assert_eq!(title("768 , ipoib : ;"), (String::new(), number(0x300)));
    assert_eq!(title("tenant 7 of site a : ;"), ("tenant 7 of site a".to_owned(), None));
    assert_eq!(title("1st=0x8001 : ;"), ("1st".to_owned(), number(1)));
}

#[test]
fn flags_set_the_broadcast_group_and_the_default_membership() {
    let rule = one(
        "a=1, ipoib, rate=16, mtu=5, sl=2, scope=8, Q_Key=0x1234, defmember=full, indx0 : SELF, ALL=limited;",
    );
    let ipoib = rule.ipoib.unwrap();
    assert_eq!((ipoib.rate, ipoib.mtu), (Rate::G100, Mtu::B4096));
    assert_eq!((ipoib.sl.to_wire(), ipoib.scope.to_wire(), ipoib.qkey.to_wire()), (2, 8, 0x1234));
    let first = |who, role| Member { selector: who, role, placement: PkeyPlacement::First };
    assert_eq!(
        rule.members,
        [first(MemberSelector::Manager, Role::Full), first(MemberSelector::All, Role::Limited)]
    );
    assert_eq!(one("a=1, ipoib : ;").ipoib, Some(Ipoib::default()));
    assert_eq!(one("a=1, mtu=5 : ;").ipoib, None, "settings alone make no group");
}

#[test]
fn rules_may_be_wrapped_and_commented() {
    let text = "# all of it\nDefault = 0x7fff, ipoib :   # everyone\n  ALL, SELF=full ;\n\
                Yellow : 0x1\n  0x2,\n\t0x3=full,\n; Green:0x4;";
    let rules = parse(text).unwrap();
    let sizes: Vec<_> = rules.iter().map(|rule| (rule.name.as_str(), rule.members.len())).collect();
    assert_eq!(sizes, [("Default", 2), ("Yellow", 3), ("Green", 1)]);
    assert_eq!(rules[1].members[2], member(guid(3), Role::Full));
    assert_eq!(parse("  # nothing\n"), Ok(vec![]));
}

#[test]
fn errors_name_the_position_and_the_token() {
    let cases: [(&str, (u32, u32, &str)); 20] = [
        ("a=1 : ALL", (1, 10, "the end of the file")),
        ("a=1 ALL;", (1, 5, "\"ALL\"")),
        ("a=1 :\n ALL SELF;", (2, 6, "\"SELF\"")),
        ("a=1 : , ALL;", (1, 7, "','")),
        ("a=1 : ALL,, SELF;", (1, 11, "','")),
        ("a=1 : ALL=limi;", (1, 11, "\"limi\"")),
        ("a=1 : ALL=;", (1, 11, "';'")),
        ("a=1 : all;", (1, 7, "\"all\"")),
        ("a=1 : 0;", (1, 7, "\"0\"")),
        ("a=1 : 0x1_0;", (1, 7, "\"0x1_0\"")),
        ("a=1 : 010;", (1, 7, "\"010\"")),
        ("a=0x8000 : ;", (1, 3, "\"0x8000\"")),
        ("a=0x10000 : ;", (1, 3, "\"0x10000\"")),
        ("a=1, ipo : ;", (1, 6, "\"ipo\"")),
        ("a=1, mtu=6 : ;", (1, 10, "\"6\"")),
        ("a=1, mtu : ;", (1, 10, "':'")),
        ("a=1, sl=16 : ;", (1, 9, "\"16\"")),
        ("a=1, ipoib, ipoib : ;", (1, 13, "\"ipoib\"")),
        ("a=1 : ALL;\n\n  : ALL;", (3, 3, "':'")),
        ("a=1 : mgid=ff12::1;", (1, 7, "\"mgid\"")),
    ];
    for (text, (line, column, found)) in cases {
        assert_eq!(refused(text), (line, column, found.to_owned()), "{text:?}");
    }
}

#[test]
fn an_error_reads_as_a_sentence() {
    let error = parse("a=1, defmember=most : ALL;").unwrap_err();
    assert_eq!(error.to_string(), "line 1, column 16: found \"most\", expected full, limited or both");
}

#[test]
fn limits_on_size_rules_and_names_hold() {
    let rules = |count: usize| "=1:;".repeat(count);
    assert_eq!(parse(&rules(RULES_MAX)).unwrap().len(), RULES_MAX);
    assert_eq!(refused(&rules(RULES_MAX + 1)).1 as usize, 4 * RULES_MAX + 1);
    assert!(parse(&format!("{}=1 : ;", "n".repeat(NAME_BYTES_MAX - 1))).is_ok());
    assert!(parse(&format!("{}=1 : ;", "n".repeat(NAME_BYTES_MAX))).is_err());
    assert!(parse(&" ".repeat(TEXT_BYTES_MAX + 1)).is_err());
}

proptest! {
    #[test]
    fn parsing_random_text_does_not_panic(text in "[aA-Z0x1-9=,:;# \n\\PC]{0,80}") {
        let _ = parse(&text);
    }

    #[test]
    fn parsing_random_tokens_does_not_panic(words in prop::collection::vec(prop::sample::select(vec![
        "a", "=", "0x1", ":", ";", ",", "ALL", "SELF", "full", "ipoib", "mtu", "4", "\n", "#", "defmember", "é", " ",
    ]), 0..40)) {
        if let Err(error) = parse(&words.concat()) {
            prop_assert!(error.line >= 1 && error.column >= 1);
        }
    }
}
