------------------------------- MODULE Fence --------------------------------
(***************************************************************************)
(* The numbers that the server gives out as fences and tickets:            *)
(* next_number() of lib/common.lua, on a server that may come back without *)
(* its data, or be replaced by a replica that lacks the last writes.       *)
(***************************************************************************)
EXTENDS Integers, Sequences

CONSTANTS
  Steps,    \* how far the clock may go
  Pause,    \* the least time that a failover or a restart takes
  Skew,     \* by how much the clock of the new primary may be behind
  Mutation  \* "none"; "incr": the number is INCR of the stored one

VARIABLES
  clock,    \* the server's clock. A tick is what the fastest script takes, about a microsecond
  last,     \* the stored number; 0 if there is none
  replica,  \* what the replica has of it
  given     \* the numbers that were given out, in order

vars == <<clock, last, replica, given>>

Max(a, b) == IF a > b THEN a ELSE b

Init == clock = 1 /\ last = 0 /\ replica = 0 /\ given = <<>>

NextNumber == IF Mutation = "incr" THEN last + 1 ELSE Max(last + 1, clock)

Give ==
  /\ clock' = clock + 1
  /\ last' = NextNumber
  /\ given' = Append(given, NextNumber)
  /\ UNCHANGED replica

Pass == clock' = clock + 1 /\ UNCHANGED <<last, replica, given>>

Replicate == replica' = last /\ UNCHANGED <<clock, last, given>>

\* The suffix of writes since the last Replicate is lost.
Failover ==
  \E behind \in 0..Skew :
    /\ clock' = clock + Pause - behind
    /\ last' = replica
    /\ UNCHANGED <<replica, given>>

Restart ==
  /\ clock' = clock + Pause
  /\ last' = 0
  /\ replica' = 0
  /\ UNCHANGED given

\* Without a loss the clock may be set back.
SetBack == clock > 1 /\ clock' = clock - 1 /\ UNCHANGED <<last, replica, given>>

Next == clock < Steps /\ (Give \/ Pass \/ Replicate \/ Failover \/ Restart)
NextWithSetBack == clock < Steps /\ Len(given) < Steps /\ (Give \/ Pass \/ SetBack)

Spec == Init /\ [][Next]_vars
SpecWithSetBack == Init /\ [][NextWithSetBack]_vars

\* README, promise 5; guarantees.md, promise 2.
FencesIncrease == \A i \in 1..Len(given) - 1 : given[i] < given[i + 1]
=============================================================================
