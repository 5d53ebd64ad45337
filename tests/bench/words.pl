# Splits, hashes, joins and sorts text: as much as fits into the milliseconds it hears.
# Answers with the number of rounds and the nanoseconds they took.
use strict;
use warnings;
use Time::HiRes qw(clock_gettime CLOCK_MONOTONIC);

sub round_of_work {
    my ($seed) = @_;
    my (%count, @lines);
    for my $n (1 .. 40) {
        my $line = join ' ', map { "word" . (($seed * 31 + $n * $_) % 97) } 1 .. 12;
        $count{$_}{total} += length $_ for split / /, $line;
        push @lines, { text => $line, parts => [split / /, $line] };
    }
    my @sorted = sort { $a->{text} cmp $b->{text} } @lines;
    return scalar(@sorted) + keys %count;
}

$| = 1;
print "ready\n";
while (my $milliseconds = <STDIN>) {
    my ($rounds, $began) = (0, clock_gettime(CLOCK_MONOTONIC));
    my $now = $began;
    while ($now - $began < $milliseconds / 1000) {
        round_of_work($rounds++);
        $now = clock_gettime(CLOCK_MONOTONIC);
    }
    printf "%d %d\n", $rounds, ($now - $began) * 1e9;
}
